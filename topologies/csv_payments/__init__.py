"""The csv-payments demo: an author's pipeline project with its mock payment provider."""
