"""The live console over HTTP: a page, and the JSON and event stream that it is made of."""
