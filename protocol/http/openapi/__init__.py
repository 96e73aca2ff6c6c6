"""OpenAPI: the document of the HTTP edge, and the page that shows it (`/v2/docs`).

`document.build_document` makes the document from the route table, `operations` (what the table does not say of a
route), `schemas` (its JSON) and `models` (what each loaded model takes and gives). `handlers` answers with it and with
`assets/`, the page and its viewer, which is packaged here: the page loads nothing from elsewhere.
"""
