"""HTTP/2 on connections upgraded from HTTP/1 (`Upgrade: h2c`), served by hypercorn over h2; entry point: `factory`."""
