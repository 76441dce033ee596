// How to call one service: its endpoint, with curl, Python and Triton's client.

import * as api from "./api.js";
import { h, show } from "./dom.js";

const example = '{"inputs": [{"name": "INPUT", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}';

/** The box, which asks once where requests go. */
export function callBox(name) {
  const box = h("section", { class: "card", "aria-label": "Call it" }, h("h2", {}, "Call it"), h("p", { class: "hint" }, "loading …"));
  api.get(`/services/${encodeURIComponent(name)}/endpoints`).then((found) => show(box, h("h2", {}, "Call it"), ...lines(found)), (problem) => show(box, h("h2", {}, "Call it"), h("p", { class: "hint" }, problem.message)));
  return box;
}

function lines({ service, url, gateway }) {
  if (url === null) return [h("p", { class: "hint" }, "No node that others can reach takes its requests: start agents with --router-host, or a gateway.")];
  const base = new URL(url).origin;
  const model = `${base}/v2/models/${service}`;
  const isModel = url.endsWith("/v1");
  const where = gateway ? "The gateway's address stays, whatever moves." : "This node's address changes with the plans; `plimsoll gateway` gives one that stays.";
  if (isModel) {
    const asked = `{"model": "${service}", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64, "stream": true}`;
    return [
      h("p", {}, h("code", {}, url)),
      h("p", { class: "hint" }, `${where} Any client of OpenAI's API takes it as its base URL. A service with a key wants it as the API key.`),
      sample("curl", `curl -N ${url}/chat/completions -H 'Content-Type: application/json' \\\n  -d '${asked}'`),
      sample("openai", `from openai import OpenAI\n\nclient = OpenAI(base_url="${url}", api_key="KEY")\nanswer = client.chat.completions.create(\n    model="${service}", messages=[{"role": "user", "content": "Hello"}], stream=True\n)\nfor part in answer:\n    print(part.choices[0].delta.content or "", end="")`),
    ];
  }
  return [
    h("p", {}, h("code", {}, url)),
    h("p", { class: "hint" }, `${where} Inputs are the network's own: GET ${model} tells them. A service with a key wants the header Authorization: Bearer KEY.`),
    sample("curl", `curl ${url} -H 'Content-Type: application/json' \\\n  -d '${example}'`),
    sample("Python", `import json, urllib.request\n\nbody = json.dumps(${example}).encode()\nrequest = urllib.request.Request("${url}", body, {"Content-Type": "application/json"})\nprint(urllib.request.urlopen(request).read().decode())`),
    sample("tritonclient", `import numpy as np\nimport tritonclient.http as triton\n\nclient = triton.InferenceServerClient("${new URL(url).host}"${base.startsWith("https") ? ", ssl=True" : ""})\ngiven = triton.InferInput("INPUT", [1, 1], "FP32")\ngiven.set_data_from_numpy(np.ones((1, 1), np.float32))\nprint(client.infer("${service}", [given]).get_response())`),
  ];
}

function sample(title, text) {
  const code = h("pre", { tabindex: 0, "aria-label": `${title} example` }, text);
  const button = h("button", { type: "button", "aria-label": `Copy the ${title} example`, onclick: () => copy(code, button) }, "Copy");
  return h("details", { class: "sample", open: title === "curl" }, h("summary", {}, title), code, button);
}

/** To the clipboard; browsers have none on pages without HTTPS, where the text is selected for the reader's own keys. */
async function copy(code, button) {
  const isCopied = await navigator.clipboard?.writeText(code.textContent).then(() => true, () => false);
  if (!isCopied) window.getSelection().selectAllChildren(code);
  button.textContent = isCopied ? "Copied" : "Selected: copy it with your keys";
}
