"""Outside parties: the adapters that carry requests, answers and files, behind two small protocols."""
