// What a person has chosen for this browser (range of charts, columns, refresh), and the call that draws the page anew.

const PREFIX = "leveret.";

let draw = () => {};

export const onChange = (then) => { draw = then; };

// Draws later in the same turn: whoever calls may be an event of an element that is just being removed.
let isDue = false;

export function changed() {
  if (isDue) return;
  isDue = true;
  queueMicrotask(() => {
    isDue = false;
    draw();
  });
}

export function chosen(name, usual) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name)) ?? usual;
  } catch {
    return usual;
  }
}

export function choose(name, value) {
  if (value === null) localStorage.removeItem(PREFIX + name);
  else localStorage.setItem(PREFIX + name, JSON.stringify(value));
  changed();
}
