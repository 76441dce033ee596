// The API's reference: Swagger UI draws the document that this control plane serves.

window.SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  docExpansion: "list",
  filter: true,
  // Nothing of the address is read, so that a link cannot put another server's document on this page.
  queryConfigEnabled: false,
  // Its default sends the document's address to a foreign host.
  validatorUrl: null,
});
