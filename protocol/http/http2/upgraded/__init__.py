"""HTTP/2 on connections upgraded from HTTP/1 (`Upgrade: h2c`), served by hypercorn over h2; `factory` is the way in."""
