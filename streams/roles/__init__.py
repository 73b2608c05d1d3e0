"""One room a role of `--roles`; they share the context and the dead letters, and never import each other."""
