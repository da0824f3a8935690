// Calls of the HTTP API. Credentials are kept in the open tabs (sessionStorage, which ends with the tab) and sent in a
// header, never in an address, since histories and logs keep addresses. A new tab asks the other tabs for them, over a
// channel that only pages of the same origin have; logging out ends the login in all tabs. `credentials: "omit"` keeps
// the browser from showing its own password dialog after a wrong password.

const KEPT = "leveret.session";
const PATIENCE_MS = 15_000;
const OTHERS_MS = 200; // How long a new tab waits for the answer of another tab.

let session = restore();
let welcome = null; // Called with the session that another tab sends.
let ended = () => {}; // Called when another tab has logged out.
const others = new BroadcastChannel(KEPT);
others.onmessage = ({ data }) => {
  if (data.what === "ask" && session?.user) others.postMessage({ what: "session", session });
  else if (data.what === "session") welcome?.(data.session);
  else if (data.what === "ended" && session) {
    forget();
    ended();
  }
};

export class ApiError extends Error {
  constructor(status, reason, code = "") {
    super(reason);
    this.status = status;
    this.code = code;
  }
}

function restore() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT));
  } catch {
    return null;
  }
}

function keep(found) {
  session = found;
  sessionStorage.setItem(KEPT, JSON.stringify(session));
}

function forget() {
  session = null;
  sessionStorage.removeItem(KEPT);
}

// Gets the session of another tab, if this one has none.
export function join() {
  if (session) return Promise.resolve();
  return new Promise((resolve) => {
    const over = () => { welcome = null; resolve(); };
    welcome = (found) => {
      if (!session) keep(found);
      over();
    };
    others.postMessage({ what: "ask" });
    setTimeout(over, OTHERS_MS);
  });
}

export function onEnded(then) {
  ended = then;
}

export const user = () => session?.user ?? null;

export async function logIn(name, password) {
  const plain = new TextEncoder().encode(`${name}:${password}`);
  const before = session;
  session = { header: `Basic ${btoa(String.fromCharCode(...plain))}`, user: null };
  try {
    session.user = await get("whoami");
  } catch (error) {
    session = before;
    throw error;
  }
  keep(session);
}

export function logOut() {
  forget();
  others.postMessage({ what: "ended" });
}

export const has = (...tags) => {
  const own = session?.user?.tags ?? [];
  const list = typeof own === "string" ? own.split(",") : own;
  return tags.some((tag) => list.includes(tag));
};

export function path(...words) {
  return words.map(encodeURIComponent).join("/");
}

export const get = (where, query, signal) => call("GET", where, { query, signal });
// The answer as it is: a file for people, or numbers that are too large for JavaScript.
export const text = (where, patience) => call("GET", where, { patience, isText: true });
export const put = (where, body = {}) => call("PUT", where, { body });
export const post = (where, body = {}, patience = PATIENCE_MS) => call("POST", where, { body, patience });
export const del = (where, query) => call("DELETE", where, { query });

// A body is sent as JSON; a file as it is.
async function call(method, where, { query, body, signal, patience = PATIENCE_MS, isText = false }) {
  const url = new URL(`api/${where}`, document.baseURI.split("#")[0]);
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") url.searchParams.append(name, one);
    }
  }
  const headers = { authorization: session?.header ?? "" };
  if (body !== undefined) headers["content-type"] = "application/json";
  const late = AbortSignal.timeout(patience);
  let response;
  try {
    response = await fetch(url, {
      method,
      headers,
      body: body === undefined || body instanceof Blob ? body : JSON.stringify(body),
      credentials: "omit",
      cache: "no-store",
      signal: signal ? AbortSignal.any([signal, late]) : late,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, late.aborted ? "The node did not answer in time." : "The node cannot be reached.");
  }
  const found = await response.text();
  const answer = isText && response.ok ? found : parse(found);
  if (!response.ok) throw new ApiError(response.status, reasonOf(response, answer), answer?.error);
  return answer;
}

function parse(found) {
  try {
    return found ? JSON.parse(found) : null;
  } catch {
    return null;
  }
}

function reasonOf(response, answer) {
  const reason = answer?.reason ?? answer?.error;
  if (response.status === 404) return "There is no such thing (any more).";
  return typeof reason === "string" && reason ? reason : `The node answered ${response.status}.`;
}
