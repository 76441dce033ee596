// The public API, with the session's cookie. A problem becomes an Error whose message a person can read; it has the
// HTTP `status`, and `problems` by field: [{pointer, detail, may_force}].

/** GET, as JSON. */
export const get = (path, query = {}) => ask("GET", path + asQuery(query));

/** POST, PUT, DELETE with a JSON body; `headers` e.g. If-Match. */
export const send = (method, path, body = undefined, headers = {}) => ask(method, path, body, headers);

/** Every item of a list, page by page, at most `most`. */
export async function list(path, query = {}, most = 5000) {
  const items = [];
  let cursor = null;
  do {
    const page = await get(path, { limit: 500, ...query, ...(cursor === null ? {} : { cursor }) });
    items.push(...page.items);
    cursor = page.next_cursor ?? null;
  } while (cursor !== null && items.length < most);
  return items;
}

function asQuery(query) {
  const pairs = Object.entries(query).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));
  const text = new URLSearchParams(pairs.filter(([, value]) => value !== null && value !== undefined)).toString();
  return text ? `?${text}` : "";
}

async function ask(method, path, body, headers = {}) {
  const json = body === undefined ? {} : { "Content-Type": "application/json" };
  const answer = await fetch(`/api/v1${path}`, {
    method,
    headers: { Accept: "application/json", ...json, ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  }).catch(() => null);
  if (answer === null) throw new Error("The control plane does not answer. What is shown may be old; try again.");
  if (answer.status === 401) window.location.assign(`/login?next=${encodeURIComponent(window.location.pathname)}`);
  if (answer.status === 204) return null;
  const found = await answer.json().catch(() => null);
  if (answer.ok) return found;
  const fields = (found?.errors ?? []).map((each) => `${each.pointer}: ${each.detail}`).join("; ");
  const words = found ? `${found.title}: ${fields || found.detail}` : `The control plane answered ${answer.status}.`;
  throw Object.assign(new Error(words), { status: answer.status, problems: found?.errors ?? [] });
}
