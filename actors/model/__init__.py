"""Model versions: servables of three kinds, their instance pools, and the requests submitted to them."""
