// The messages of a queue: looked at, searched, got with an acknowledgement of choice, moved, deleted. A stream is looked
// into from an offset or a time on.

import * as api from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, number, NONE, when } from "./format.js";
import { definition } from "./queue.js";
import { changed } from "./state.js";
import { ask, badge, button, confirm, empty, toast } from "./ui.js";

const SHOWN = 5;
const GOT_MAX = 500;
const SHOWN_BYTES = 4_096;
const SEARCHES_MAX = 50;  // Requests of one search, each of which looks at ten thousand messages at most.
const MODES = [["ack_requeue_true", "Requeue: they stay, marked as redelivered"], ["ack_requeue_false", "Automatic acknowledgement: they are removed"],
  ["reject_requeue_false", "Reject: they are dead-lettered or removed"], ["reject_requeue_true", "Reject and requeue"]];

// What is shown of one queue's messages, and where it goes on.
export class Messages {
  constructor(app, vhost, name) {
    Object.assign(this, { app, vhost, name, path: api.path(vhost, name), busy: false, error: null, found: null });
  }

  // Replaces what is shown by the answer of `load`.
  async show(kind, load) {
    if (this.busy) return;
    Object.assign(this, { busy: true, error: null });
    changed();
    try {
      this.found = { kind, ...await load() };
    } catch (error) {
      this.error = error;
    }
    this.busy = false;
    changed();
  }

  look(position) {
    return this.show("looked", async () => ({ position, ...await api.get(`leveret/peek/${this.path}`, { position, count: SHOWN }) }));
  }

  lookIntoStream(from) {
    return this.show("stream", async () => ({ from, ...await api.get(`leveret/peek/${this.path}`, { ...from, count: SHOWN }) }));
  }

  // Looks for a text until something is found or all messages were looked at.
  search(text, cursor = null) {
    return this.show("searched", async () => {
      let [scanned, next, messages] = [0, cursor, []];
      for (let count = 0; count < SEARCHES_MAX && !messages.length; count += 1) {
        const answer = await api.get(`leveret/search/${this.path}`, { text, cursor: next?.join(), count: 10 });
        scanned += answer.scanned;
        ({ messages, cursor: next } = answer);
        if (next === null) break;
      }
      return { text, messages, scanned, cursor: next };
    });
  }

  get() {
    ask({
      title: `Get messages of ${this.name}`,
      text: "Takes messages as a consumer would. To only look at them, use “Look at messages”.",
      action: "Get",
      fields: [{ name: "count", label: "Messages", kind: "number", value: "1" }, { name: "mode", label: "Then", kind: "select", options: MODES },
        { name: "encoding", label: "Show as", kind: "select", options: [["auto", "text, if it is text"], ["base64", "base64"]] }],
      submit: async ({ count, mode, encoding }) => {
        const wanted = { count: Math.min(Math.max(Number(count) || 1, 1), GOT_MAX), ackmode: mode, encoding, truncate: SHOWN_BYTES };
        const messages = await api.post(`queues/${this.path}/get`, wanted);
        this.error = null;
        this.found = { kind: "got", mode, messages: messages.map((one, at) => ({ ...one, position: at + 1, truncated: one.payload_bytes > SHOWN_BYTES,
          properties: Array.isArray(one.properties) ? {} : one.properties })) };
        this.app.reload();
      },
    });
  }

  deleteOne(one) {
    confirm("Delete this message?", "It is removed from the queue, without a dead letter. This cannot be undone.", "Delete", async () => {
      const { deleted } = await api.post(`leveret/messages/${this.path}/delete`, { messages: [{ number: one.number, id: one.id }] });
      if (!deleted) throw new Error("It is not waiting in the queue any more.");
      toast("Message deleted");
      this.found.messages = this.found.messages.filter((other) => other !== one);
      this.app.reload();
    });
  }

  deleteMatching(text) {
    confirm(`Delete all messages that contain “${text}”?`, "All ready messages of the queue are searched. They are removed without dead letters. This cannot be undone.",
      "Delete", async () => {
        let [deleted, cursor] = [0, null];
        do {
          const answer = await api.post(`leveret/messages/${this.path}/delete`, { text, cursor }, 60_000);
          deleted += answer.deleted;
          ({ cursor } = answer);
        } while (cursor !== null);
        toast(`${number(deleted)} ${deleted === 1 ? "message" : "messages"} deleted`);
        this.found = null;
        this.app.reload();
      });
  }
}

// -- Drawing ------------------------------------------------------------------------------------------------------

export function messagesCard(messages, one) {
  const { found, error, busy } = messages;
  const isStream = one.type === "stream";
  return [
    h("p", { class: "muted" }, isStream ? "Shows messages from an offset or a time on." : "Looking and searching consume nothing: nothing is removed, requeued or marked."),
    isStream ? streamForm(messages) : searchForm(messages),
    error ? h("p", { class: "problem", role: "alert", key: "error" }, error.message) : null,
    found && !error ? h("div", { key: "found", "aria-live": "polite" }, told(found), found.messages.length
      ? h("ol", { class: "messages" }, found.messages.map((each) => message(each, messages, found.kind)))
      : empty(found.kind === "searched" ? "No ready message contains that" : isStream ? "No messages from there on" : "No ready messages", null)) : null,
    // With a key of its own, and never disabled: otherwise a keyboard user who pressed a button would lose the focus.
    h("div", { class: "actions", key: "actions", "aria-busy": busy ? "true" : null }, isStream ? streamPages(messages) : pages(messages)),
  ];
}

function told(found) {
  if (found.kind === "searched") return h("p", { class: "muted" }, `${number(found.scanned)} messages were searched.`);
  if (found.kind === "got") return h("p", { class: "muted" }, `Got, and then: ${MODES.find(([mode]) => mode === found.mode)[1]}.`);
  return null;
}

function pages(messages) {
  const { found } = messages;
  const looked = found?.kind === "looked" ? found : null;
  const last = looked ? looked.position + looked.messages.length - 1 : 0;
  return [
    button(looked ? "Look again" : "Look at messages", () => messages.look(1)),
    button("Get messages …", () => messages.get()),
    looked && looked.position > 1 ? button("← Previous", () => messages.look(Math.max(1, looked.position - SHOWN))) : null,
    looked && last < looked.ready ? button("Next →", () => messages.look(last + 1)) : null,
    looked?.messages.length ? h("span", { class: "muted" }, `${number(looked.position)}–${number(last)} of ${number(looked.ready)}`) : null,
    found?.kind === "searched" && found.cursor ? button("Search on →", () => messages.search(found.text, found.cursor)) : null,
    found?.kind === "searched" && found.messages.length ? button("Delete all that match …", () => messages.deleteMatching(found.text), "danger") : null,
  ];
}

function searchForm(messages) {
  const submit = (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("text");
    if (text) messages.search(text);
  };
  return h("form", { class: "filters", role: "search", key: "search", onsubmit: submit },
    h("label", { class: "filter" }, h("span", { class: "hidden" }, "Search in messages"),
      h("input", { type: "search", name: "text", placeholder: "Text in body, properties or routing key", spellcheck: "false", autocapitalize: "none" })),
    h("button", null, "Search"));
}

function streamForm(messages) {
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const time = Date.parse(form.get("time"));
    messages.lookIntoStream(Number.isFinite(time) ? { time } : { offset: Math.max(0, Number(form.get("offset")) || 0) });
  };
  return h("form", { class: "filters", key: "stream", onsubmit: submit },
    h("label", { class: "check" }, "From offset ", h("input", { type: "number", name: "offset", min: 0, value: "0" })),
    h("label", { class: "check" }, "or time ", h("input", { type: "datetime-local", name: "time", step: 1 })),
    h("button", null, "Look"));
}

function streamPages(messages) {
  const { found } = messages;
  if (found?.kind !== "stream") return null;
  const [first, last] = [found.messages[0]?.offset, found.messages.at(-1)?.offset];
  return [
    first > found.first ? button("← Previous", () => messages.lookIntoStream({ offset: Math.max(found.first, first - SHOWN) })) : null,
    last !== undefined && last + 1 < found.next ? button("Next →", () => messages.lookIntoStream({ offset: last + 1 })) : null,
    found.next > SHOWN ? button("Last →|", () => messages.lookIntoStream({ offset: Math.max(found.first, found.next - SHOWN) })) : null,
    h("span", { class: "muted" }, found.next > found.first ? `The stream has the offsets ${number(found.first)} to ${number(found.next - 1)}.` : "The stream is empty."),
  ];
}

function message(one, messages, kind) {
  const { headers, ...properties } = one.properties;
  const mayDelete = kind === "looked" || kind === "searched";
  return h("li", { class: "message", key: one.number ?? one.position },
    h("div", { class: "message-head" }, h("b", null, kind === "stream" ? `Offset ${number(one.offset)}` : `${number(one.position)}.`),
      h("span", { class: "long" }, one.exchange || "(default exchange)", " → ", one.routing_key || NONE),
      one.redelivered ? badge("redelivered", "warn") : null,
      properties.delivery_mode === 2 ? badge("persistent", "plain") : null,
      h("span", { class: "muted" }, bytes(one.payload_bytes), one.payload_encoding === "base64" ? ", shown as base64" : "",
        one.time ? `, ${when(one.time)}` : properties.timestamp ? `, ${ago(properties.timestamp * 1000)}` : ""),
      mayDelete ? button("Delete …", () => messages.deleteOne(one), "quiet small message-delete") : null),
    h("pre", { tabindex: "0" }, one.payload || "(empty)", one.truncated ? " …" : ""),
    Object.keys(properties).length || headers ? h("details", null, h("summary", null, "Properties"),
      definition({ ...properties, ...Object.fromEntries(Object.entries(headers ?? {}).map(([name, value]) => [`headers.${name}`, value])) })) : null);
}
