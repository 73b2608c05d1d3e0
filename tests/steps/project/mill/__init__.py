"""A pipeline whose lines say what goes wrong with them: `<function>:<verb>`."""
