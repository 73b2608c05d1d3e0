"""The role that takes answers and source records from the user's topics to ours."""
