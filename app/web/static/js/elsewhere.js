// In place of a page about the whole cluster, for a token that is bound to projects: what it is not, and where to go.

import { h, show } from "./dom.js";
import { begin, content } from "./page.js";

show(content, h("p", { class: "card" }, "This page is about the whole cluster, and your token is bound to projects. See ",
  h("a", { href: "/services" }, "your services"), " and ", h("a", { href: "/cost" }, "what they cost"), "; somebody with a token for the whole cluster sees the rest."));
begin();
