"""A shop that asks an outside party for prices: the author's side of the small pipelines next to this folder."""
