"""The description of the HTTP interface: what /openapi.json, /docs and the site's http.md say."""
