"""Rows in groups: `product` multiplies each group by its matrix, `gradient` makes the matrices' gradient."""
