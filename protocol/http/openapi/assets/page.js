"use strict";

SwaggerUIBundle({
  url: "docs/openapi.json", // beside this page
  dom_id: "#page",
  deepLinking: true,
  filter: true,
  displayRequestDuration: true,
  tryItOutEnabled: true,
  defaultModelsExpandDepth: 0,
  syntaxHighlight: false, // it takes seconds for tensors of some thousand elements
  validatorUrl: null, // it would send the document to another host
});
