// Elements from descriptions. A view describes the whole of what it shows each time something changed, and `render`
// makes the least change to the document that gets there. So a page that is drawn anew every second loses neither the
// focus nor a selection nor what somebody is typing: a field's value is touched only if its description changed.
//
// Text is only ever set as text. Nothing here parses markup, because names come from whoever may declare a queue.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "circle", "line", "rect", "text", "tspan", "defs", "marker", "title",
  "polyline", "polygon"]);

export function h(tag, props, ...children) {
  const { key = null, ...rest } = props ?? {};
  return { tag, key, props: rest, children: tidy(children), node: null };
}

function tidy(children, found = []) {
  for (const child of children) {
    if (Array.isArray(child)) tidy(child, found);
    else if (child === null || child === undefined || child === false || child === "") continue;
    else if (typeof child === "object") found.push(child);
    else found.push({ tag: "#", key: null, text: String(child), node: null });
  }
  return found;
}

export function render(container, description) {
  const next = tidy([description]);
  patchChildren(container, container.described ?? clear(container), next);
  container.described = next;
}

function clear(container) {
  container.replaceChildren();
  return [];
}

function create(wanted, isDrawing) {
  if (wanted.tag === "#") {
    wanted.node = document.createTextNode(wanted.text);
    return wanted.node;
  }
  const drawing = wanted.tag === "svg" || (isDrawing && SVG_TAGS.has(wanted.tag));
  const node = drawing ? document.createElementNS(SVG, wanted.tag) : document.createElement(wanted.tag);
  wanted.node = node;
  patchChildren(node, [], wanted.children);  // First: the value of a <select> can only be one of its options.
  patchProps(node, {}, wanted.props);
  if (wanted.props.ref) queueMicrotask(() => wanted.props.ref(node));  // By then it is in the document.
  return node;
}

function patch(old, wanted) {
  const node = old.node;
  wanted.node = node;
  if (wanted.tag === "#") {
    if (old.text !== wanted.text) node.data = wanted.text;
    return;
  }
  patchChildren(node, old.children, wanted.children);
  patchProps(node, old.props, wanted.props);
}

function patchProps(node, old, wanted) {
  for (const name of Object.keys(old)) if (!(name in wanted)) setProp(node, name, null);
  for (const [name, value] of Object.entries(wanted)) if (old[name] !== value) setProp(node, name, value);
}

function setProp(node, name, value) {
  if (name === "ref") return;
  if (name.startsWith("on")) node[name] = value ?? null;
  else if (name === "value" && "value" in node && node.tagName !== "PROGRESS" && node.tagName !== "METER") {
    if (node.value !== String(value ?? "")) node.value = value ?? "";
  } else if (name === "checked") node.checked = Boolean(value);
  else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
}

function patchChildren(parent, olds, wanted) {
  const byKey = new Map();
  const others = [];
  for (const old of olds) {
    if (old.key === null) others.push(old);
    else byKey.set(old.key, old);
  }
  const kept = new Set();
  let at = 0;
  const matches = wanted.map((one) => {
    const old = one.key === null ? others[at++] : byKey.get(one.key);
    const fits = old !== undefined && old.tag === one.tag && !kept.has(old);
    if (fits) kept.add(old);
    return fits ? old : null;
  });
  // What goes, goes first: to move an element that has the focus takes it away, and what stays then need not move.
  for (const old of olds) if (!kept.has(old)) old.node.remove();
  let place = parent.firstChild;
  const isDrawing = parent.namespaceURI === SVG;
  wanted.forEach((one, number) => {
    const old = matches[number];
    if (old === null) parent.insertBefore(create(one, isDrawing), place);
    else {
      patch(old, one);
      if (one.node === place) place = place.nextSibling;
      else parent.insertBefore(one.node, place);
    }
  });
}
