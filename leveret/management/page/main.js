// The frame of the page: login, navigation, the current view, and problems of the cluster.
//
// A view is made by a function of (app, words, …) that gives {title, every, load(signal), render(data)}. It is loaded
// again every so many milliseconds while somebody looks at it; a load that fails leaves what was shown and says so.

import * as api from "./api.js";
import { h, render } from "./dom.js";
import { nodeName, number } from "./format.js";
import { changed, choose, chosen, onChange } from "./state.js";
import { failure, loading, toast } from "./ui.js";
import { overview } from "./overview.js";
import { cluster } from "./cluster.js";
import { queues } from "./queues.js";
import { queue } from "./queue.js";
import { exchange, exchanges } from "./exchanges.js";
import { channel, channels, connection, connections, consumers } from "./connections.js";
import { node } from "./nodes.js";
import { vhost, vhosts } from "./vhosts.js";
import { admin } from "./admin.js";
import { federation } from "./federation.js";
import { stomp } from "./stomp.js";
import { topology } from "./topology.js";
import { tracing } from "./tracing.js";
import { retained, session, sessions } from "./mqtt.js";
import { policies } from "./policies.js";
import { shovels } from "./shovels.js";
import { user, users } from "./users.js";
import { leases } from "./leases.js";
import { jobs } from "./jobs.js";

// By section and the number of words behind it in the address.
const VIEWS = {
  overview: [overview], cluster: [cluster], nodes: [cluster, node], queues: [queues, null, queue], exchanges: [exchanges, null, exchange],
  connections: [connections, connection], channels: [channels, channel], consumers: [consumers],
  mqtt: [sessions, (app_, part) => (part === "retained" ? retained(app_) : sessions(app_)), session], policies: [policies],
  vhosts: [vhosts, vhost], users: [users, user], shovels: [shovels], federation: [federation], stomp: [stomp], admin: [admin],
  topology: [topology, topology, topology], tracing: [tracing, tracing], leases: [leases], jobs: [jobs],
};
const SECTIONS = [
  ["overview", "Overview"], ["cluster", "Cluster"], ["queues", "Queues"], ["exchanges", "Exchanges"], ["topology", "Topology"],
  ["connections", "Connections"], ["channels", "Channels"], ["consumers", "Consumers"], ["mqtt", "MQTT"], ["stomp", "STOMP"],
  ["policies", "Policies"], ["vhosts", "Virtual hosts"], ["users", "Users"], ["shovels", "Shovels"], ["federation", "Federation"],
  ["tracing", "Tracing"], ["leases", "Leases"], ["jobs", "Jobs"], ["admin", "Admin"],
];
const FOR_ADMINISTRATORS = ["users", "admin"];
const WATCH_MS = 1_500;
const OLD_MS = 15_000;
const REFRESH = [["usual", "live"], ["5", "every 5 s"], ["30", "every 30 s"], ["300", "every 5 min"], ["off", "by hand"]];

const root = document.getElementById("app");

const app = {
  view: null,
  section: "",
  words: [],
  query: new URLSearchParams(),
  data: null,
  error: null,
  news: null,  // The last answer of /api/leveret/cluster.
  lost: false,  // The last request failed.
  loaded: 0,  // When what is shown was loaded.
  menu: false,
  draw,
  reload,
  go(where) {
    location.hash = where;
  },
  // The state of a list is in the address, so that a reload and the back button show the same page of it.
  setQuery(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === "" || value === false) this.query.delete(name);
      else this.query.set(name, value);
    }
    const query = this.query.toString();
    history.replaceState(null, "", `#/${[this.section, ...this.words].map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`);
    draw();
    return reload();
  },
  // The nodes and whether they are running, as far as the page knows.
  standing: () => (app.news?.members ?? []).map((one) => `${one.name} ${one.running}`).join(),
  // What is shown may have changed since: the page is refreshed seldom or by hand, or the node does not answer.
  isOld: () => Date.now() - app.loaded > OLD_MS,
  isDown: (name) => (app.news?.members ?? []).some((one) => one.name === name && !one.running),
  node: (name) => nodeName(name, app.news ? [...app.news.members, ...(app.news.witnesses ?? [])].map((one) => one.name) : [name]),
  // Does what the user asked for, and reports the result.
  async act(action, done) {
    try {
      const result = await action();
      if (done) toast(typeof done === "function" ? done(result) : done);
      await reload();
      return result;
    } catch (error) {
      toast(error.message, "bad");
      return undefined;
    }
  },
};

// -- Views --------------------------------------------------------------------------------------------------------

let turn = null;  // Aborts the requests of the previous view.
let timer = 0;

function open() {
  turn?.abort();
  clearTimeout(timer);
  const [where, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [section, ...words] = where.split("/").filter(Boolean).map(decodeURIComponent);
  const make = VIEWS[section]?.[words.length];
  if (!make) {
    history.replaceState(null, "", "#/overview");
    open();
    return;
  }
  // After a link the focus moves to the new contents; when the page is opened, it stays at the top, with the skip link.
  const moved = app.section !== "" && (app.section !== section || app.words.join("/") !== words.join("/"));
  Object.assign(app, { section, words, query: new URLSearchParams(query ?? ""), data: null, error: null, menu: false });
  turn = new AbortController();
  app.view = make(app, ...words);
  document.title = `${app.view.title} · Leveret`;
  draw();
  if (moved) {
    window.scrollTo(0, 0);
    document.getElementById("main")?.focus({ preventScroll: true });
  }
  reload();
}

let loads = 0;

async function reload() {
  const { view } = app;
  const mine = turn;
  loads += 1;
  const number = loads;
  clearTimeout(timer);
  try {
    const data = await view.load(mine.signal);
    if (number !== loads || mine !== turn) return;
    app.data = data;
    app.error = null;
    app.loaded = Date.now();
  } catch (error) {
    if (mine.signal.aborted || number !== loads) return;
    if (isOut(error)) return;
    app.error = error;
  }
  draw();
  if (view.every) schedule(view);
}

function schedule(view) {
  const wanted = chosen("refresh", "usual");
  if (wanted === "off") return;
  const every = wanted === "usual" ? view.every : Math.max(view.every, Number(wanted) * 1000);
  timer = setTimeout(() => (document.hidden ? schedule(view) : reload()), every);
}

function isOut(error) {
  if (error.status !== 401 || error.code !== "not_authorized") return false;
  api.logOut();
  start();
  return true;
}

// -- Problems ----------------------------------------------------------------------------------------------------

let watching = 0;

async function watch() {
  clearTimeout(watching);
  if (!api.user()) return;
  const before = app.standing();
  try {
    if (!document.hidden) {
      app.news = await api.get("leveret/cluster");
      app.lost = false;
    }
  } catch (error) {
    if (isOut(error)) return;
    app.lost = true;
  }
  draw();
  if (before !== "" && before !== app.standing()) reload();  // The shown data is from before a node went down or came up.
  watching = setTimeout(watch, WATCH_MS);
}

function troubles() {
  const { news } = app;
  const found = [];
  if (app.lost) found.push(["bad", "This node does not answer.", "This page may be out of date. Retrying …"]);
  if (!news) return found;
  if (!news.has_majority) {
    const paused = news.members.some((one) => one.name === news.node && one.paused);
    const rest = paused ? "" : " Reachable queues work; nothing can be declared or changed.";
    found.push(["bad", "Partition:", `${app.node(news.node)} cannot reach a majority of the cluster.${rest}`]);
  }
  for (const { name, running } of news.witnesses ?? []) {
    if (!running) found.push(["warn", "Witness down:", `${name}. The loss of one more node would leave no majority.`]);
  }
  const waiting = news.waiting_for;
  if (waiting?.command) {
    found.push(["bad", "Waiting:", `${app.node(news.node)} waits for ${waiting.nodes.map(app.node).join(", ")}${waiting.doubt ? ` (${waiting.doubt})` : ""}. To continue without it: ${waiting.command}. ${waiting.cost}.`]);
  }
  const down = news.members.filter((one) => !one.running).map((one) => app.node(one.name));
  if (down.length) found.push(["warn", down.length === 1 ? "Node down:" : "Nodes down:", down.join(", ")]);
  for (const { name, paused, maintenance } of news.members) {
    if (paused) found.push(["bad", "Paused:", `${app.node(name)} serves no clients until it is in contact with enough nodes.`]);
    if (maintenance) found.push(["warn", "In maintenance:", `${app.node(name)} serves no clients and is no queue's master (${maintenance}).`]);
  }
  if (news.detached?.queues) {
    const { queues, served } = news.detached;
    const names = served.slice(0, 5).map((one) => one.name).join(", ") + (queues > 5 ? ", …" : "");
    found.push(["warn", "Detached:", `${app.node(news.node)} serves ${number(queues)} ${queues === 1 ? "queue" : "queues"} from its copies, marked as redelivered, until it reaches the other node: ${names}.`]);
  }
  if (news.spooled) {
    found.push(["warn", "Spool:", `${app.node(news.node)} stores ${number(news.spooled)} messages for queues that it cannot reach.`]);
  }
  for (const { node, resource } of news.alarms) {
    const what = resource === "memory" ? "Memory" : "Disk space";
    found.push(["bad", `${what} alarm`, `on ${app.node(node)}. Publishers are blocked until it clears.`]);
  }
  return found;
}

// -- Drawing ------------------------------------------------------------------------------------------------------

function draw() {
  if (!api.user() || !app.view) return;
  render(root, h("div", { class: "frame", key: "frame" },
    h("a", { class: "skip", href: "#main", onclick: skip }, "Skip to the contents"),
    header(),
    navigation(),
    h("main", { id: "main", tabindex: "-1" },
      h("div", { class: "troubles", role: "status", "aria-live": "polite" },
        troubles().map(([kind, title, text]) => h("p", { class: `trouble ${kind}`, key: title + text },
          h("strong", null, title), " ", text))),
      body())));
}

function body() {
  const { view, data, error } = app;
  if (data === null) {
    return h("div", { key: "empty" }, h("h1", null, view.title), error ? failure(error, reload) : loading());
  }
  return h("div", { class: error ? "stale" : null, key: `${app.section}/${app.words.join("/")}` },
    error && !app.lost ? failure(error, reload) : null,
    app.isOld() ? h("p", { class: "muted as-of", key: "as-of" }, `As of ${new Date(app.loaded).toLocaleTimeString()}.`) : null,
    view.render(data));
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function header() {
  const { news } = app;
  return h("header", { class: "bar" },
    h("button", {
      class: "menu", type: "button", "aria-expanded": String(app.menu), "aria-controls": "nav",
      onclick: () => { app.menu = !app.menu; draw(); },
    }, "Menu"),
    h("a", { class: "brand", href: "#/overview" },
      h("img", { src: "page/leveret.svg", alt: "", width: 24, height: 24 }), "Leveret"),
    h("span", { class: "where" }, news ? [h("span", { class: "cluster-name" }, news.cluster_name),
      h("span", { class: "muted" }, ` seen from ${app.node(news.node)}`)] : null),
    h("span", { class: "who" }, h("span", { class: "muted" }, api.user().name),
      h("button", { type: "button", class: "quiet", onclick: leave }, "Log out")));
}

function navigation() {
  const shown = SECTIONS.filter(([name]) => !FOR_ADMINISTRATORS.includes(name) || api.has("administrator"));
  return h("nav", { id: "nav", class: app.menu ? "open" : null, "aria-label": "Sections" },
    h("ul", null, shown.map(([name, title]) => h("li", { key: name },
      h("a", { href: `#/${name}`, onclick: closeMenu, "aria-current": app.section === name || (name === "cluster" && app.section === "nodes") ? "page" : null }, title)))),
    refreshing());
}

// Also for the section that is open already, whose address does not change.
function closeMenu() {
  app.menu = false;
  changed();
}

function refreshing() {
  const wanted = chosen("refresh", "usual");
  return h("div", { class: "refresh", key: "refresh" },
    h("label", null, "Refresh", h("select", { value: wanted, onchange: (event) => { choose("refresh", event.target.value); reload(); } },
      REFRESH.map(([value, text]) => h("option", { value, key: value, selected: value === wanted }, text)))),
    wanted === "off" ? h("button", { type: "button", class: "small", onclick: reload }, "Refresh now") : null);
}

function leave() {
  api.logOut();
  location.hash = "";
  start();
}

// -- Logging in ---------------------------------------------------------------------------------------------------

let refusal = "";
let busy = false;

function drawLogin() {
  render(root, h("main", { class: "login", key: "login", id: "main" },
    h("form", { onsubmit: enter, "aria-labelledby": "login-title" },
      h("img", { src: "page/leveret.svg", alt: "", width: 48, height: 48 }),
      h("h1", { id: "login-title" }, "Leveret"),
      h("p", { class: "muted" }, "Log in as a user of the broker. A new broker has the user guest with the password guest, "
        + "for logins from its own machine."),
      h("label", null, "User", h("input", {
        name: "user", autocomplete: "username", required: true, autocapitalize: "none", spellcheck: "false",
        ref: (node) => node.focus(),
      })),
      h("label", null, "Password", h("input", {
        name: "password", type: "password", autocomplete: "current-password", required: true,
      })),
      h("p", { class: "problem", role: "alert" }, refusal),
      h("button", { class: "primary", disabled: busy }, busy ? "Please wait …" : "Log in"))));
}

async function enter(event) {
  event.preventDefault();
  const form = new FormData(event.target);
  busy = true;
  refusal = "";
  drawLogin();
  try {
    await api.logIn(form.get("user"), form.get("password"));
    start();
  } catch (error) {
    refusal = error.status === 401 ? "The user or the password is wrong, or the user has no management tag."
      : error.message;
  }
  busy = false;
  if (!api.user()) drawLogin();
}

function start() {
  turn?.abort();
  clearTimeout(timer);
  clearTimeout(watching);
  if (!api.user()) {
    Object.assign(app, { view: null, news: null, section: "", words: [] });
    document.title = "Log in · Leveret";
    drawLogin();
    return;
  }
  watch();
  open();
}

window.addEventListener("hashchange", () => api.user() && open());
document.addEventListener("visibilitychange", () => !document.hidden && app.view && reload());
api.onEnded(start);
onChange(draw);
api.join().then(start);
