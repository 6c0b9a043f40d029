"""Products of rows in groups: `product` multiplies each group by its matrix, `gradient` makes those matrices' gradient."""
