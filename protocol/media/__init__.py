"""Media: what the server fetches for its clients, by URLs, from hosts that its operator has allowed, and no others."""
