"""What the pages for people have in common: their style, and the library that they are made with."""
