// Elements that views share: dialogs, toasts, badges, tiles.

import { h, render } from "./dom.js";

// -- Small things -------------------------------------------------------------------------------------------------

export const loading = () => h("p", { class: "empty", key: "loading" }, "Loading …");

export const empty = (title, text) => h("div", { class: "empty" }, h("p", { class: "empty-title" }, title),
  text ? h("p", null, text) : null);

export function failure(error, again) {
  return h("div", { class: "failure", role: "alert", key: "failure" }, h("p", null, error.message),
    again ? h("button", { type: "button", onclick: again }, "Try again") : null);
}

export const badge = (text, kind = "", title = null) => h("span", { class: `badge ${kind}`, title }, text);

export const tile = (name, value, note = null, href = null) => h(href ? "a" : "div", { class: "tile", href },
  h("span", { class: "tile-name" }, name), h("span", { class: "tile-value" }, value),
  note ? h("span", { class: "tile-note" }, note) : null);

export const tiles = (...list) => h("div", { class: "tiles" }, list);

export const card = (title, ...children) => h("section", { class: "card" }, title ? h("h2", null, title) : null,
  children);

export const button = (text, onclick, kind = "", props = {}) => h("button", { type: "button", class: kind, onclick, ...props },
  text);

export const link = (text, ...words) => h("a", { href: `#/${words.map(encodeURIComponent).join("/")}` }, text);

// An address that is broken between its parts, if it has to be broken.
export const breakable = (uri) => String(uri ?? "").split(/(?<=[/@:,?&])(?=[^/])/).flatMap((part, at) => (at ? [h("wbr", null), part] : [part]));

// A list of names and values.
export const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined)
  .map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value))));

export function meter(used, limit, kind = "") {
  const share = limit > 0 ? Math.min(Math.max(used / limit, 0), 1) : 0;
  return h("svg", { class: `meter ${kind || (share > 0.9 ? "bad" : share > 0.75 ? "warn" : "")}`, viewBox: "0 0 100 4",
    preserveAspectRatio: "none", "aria-hidden": "true" },
    h("rect", { class: "meter-all", width: 100, height: 4, rx: 1 }),
    h("rect", { class: "meter-used", width: (100 * share).toFixed(2), height: 4, rx: 1 }));
}

export function toast(text, kind = "good") {
  const node = document.createElement("p");
  node.className = `toast ${kind}`;
  node.textContent = text;
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), kind === "bad" ? 9_000 : 4_000);
}

// -- Dialogs ------------------------------------------------------------------------------------------------------

// A form in a dialog of the browser's own, which keeps the focus inside and closes by Escape. Fields are
// {name, label, value, kind, options, hint, required, wide}. `submit(values)` may throw; then the dialog stays and says
// why. `live(values)` gives a description that is shown below the fields, and again whenever they change.
export function ask({ title, text = null, fields = [], action = "OK", kind = "primary", submit, live = null }) {
  const dialog = document.createElement("dialog");
  document.body.append(dialog);
  const state = { problem: "", busy: false, shown: null };
  let typed = 0;

  const values = () => {
    const form = new FormData(dialog.querySelector("form"));
    return Object.fromEntries(fields.map(({ name, kind: type }) => [name, type === "check" ? form.has(name)
      : String(form.get(name) ?? "")]));
  };
  const look = () => {
    if (!live) return;
    typed += 1;
    const number = typed;
    clearTimeout(state.timer);
    state.timer = setTimeout(async () => {
      let shown;
      try {
        shown = await live(values());
      } catch (error) {
        shown = h("p", { class: "problem" }, error.message);
      }
      if (number !== typed || !dialog.isConnected) return;
      state.shown = shown;
      redraw();
    }, 200);
  };
  const send = async (event) => {
    event.preventDefault();
    Object.assign(state, { problem: "", busy: true });
    const given = values();
    redraw();
    try {
      const result = await submit(given);
      state.busy = false;
      if (result !== false) dialog.close();
      return;
    } catch (error) {
      state.problem = error.message;
    }
    state.busy = false;
    redraw();
  };
  const redraw = () => render(dialog, h("form", { onsubmit: send, oninput: look, "aria-labelledby": "dialog-title" },
    h("h2", { id: "dialog-title" }, title),
    text ? h("p", null, text) : null,
    h("div", { class: "fields" }, fields.map(field)),
    live ? h("div", { class: "live", "aria-live": "polite" }, state.shown) : null,
    h("p", { class: "problem", role: "alert" }, state.problem),
    h("div", { class: "actions" },
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"),
      h("button", { class: kind, disabled: state.busy }, state.busy ? "Please wait …" : action))));
  dialog.addEventListener("close", () => dialog.remove());
  redraw();
  dialog.showModal();
  // Without fields, Cancel gets the focus: a second Enter must not confirm the question that the first one opened.
  dialog.querySelector("input, select, textarea, .actions button")?.focus();
  look();
}

function field({ name, label, value = "", kind = "text", options = [], hint = null, required = false, wide = false,
  placeholder = null }) {
  // A hint describes a field; inside of the label it would be read out as part of the name.
  const common = { name, "aria-describedby": hint ? `hint-${name}` : null };
  const quiet = { spellcheck: "false", autocapitalize: "none", placeholder };
  let control;
  if (kind === "select") {
    const choices = options.map((one) => (Array.isArray(one) ? one : [one, one]));
    // One option is always chosen; a <select> with a value that no option has shows nothing and sends nothing.
    const chosen = choices.some(([text]) => text === value) ? value : choices[0]?.[0] ?? "";
    control = h("select", { ...common, value: chosen }, choices.map(([text, shown]) => h("option", { value: text,
      selected: text === chosen }, shown)));
  } else if (kind === "area") control = h("textarea", { ...common, ...quiet, rows: 4, value });
  else if (kind === "check") control = h("input", { ...common, type: "checkbox", checked: value === true });
  else {
    const autocomplete = kind === "password" ? "new-password" : "off";
    control = h("input", { ...common, ...quiet, type: kind, value, required, autocomplete });
  }
  return h("div", { class: wide || kind === "area" || kind === "check" ? "field wide" : "field", key: name },
    kind === "check" ? h("label", { class: "check" }, control, label) : h("label", null, label, control),
    hint ? h("small", { id: `hint-${name}` }, hint) : null);
}

export const confirm = (title, text, action, submit) => ask({ title, text, action, kind: "danger", submit });

// Parses arguments or headers that were typed as a JSON object. An empty field is an empty object.
export function object(text, what = "The arguments") {
  if (!text.trim()) return {};
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: ${error.message}`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error(`${what}: must be an object, such as {"x-max-length": 100}`);
  return value;
}
