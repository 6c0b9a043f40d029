"""Rows in groups: `product` multiplies each group by its matrix, `gradient` computes the matrices' gradient."""
