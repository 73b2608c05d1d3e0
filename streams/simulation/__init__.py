"""The seeded simulator: one integer is one whole run of an application with everything going wrong."""
