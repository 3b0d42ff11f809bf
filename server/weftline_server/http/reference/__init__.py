"""The description of the HTTP interface: what /openapi.json, /docs and docs/http.md say."""
