"""Objects in a store, files today: listed and identified, written so that they appear whole, row by row."""
