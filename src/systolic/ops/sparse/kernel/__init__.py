"""Block-sparse products: `product` multiplies a sparse matrix by a dense one, `sampled` makes blocks of a product."""
