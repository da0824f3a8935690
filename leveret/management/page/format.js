// Figures as people read them. A figure that is not known is a dash, never a zero: that would look like a promise.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FINE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
export const NONE = "–";

export function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? WHOLE.format(value) : NONE;
}

export function rate(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  return `${value > 0 && value < 10 ? FINE.format(value) : WHOLE.format(value)}/s`;
}

export function bytes(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${value < 100 && at > 0 ? FINE.format(value) : WHOLE.format(value)} ${units[at]}`;
}

export function short(value) {
  if (value >= 1e9) return `${FINE.format(value / 1e9)}G`;
  if (value >= 1e6) return `${FINE.format(value / 1e6)}M`;
  if (value >= 1e4) return `${FINE.format(value / 1e3)}k`;
  return value < 10 ? FINE.format(value) : WHOLE.format(value);
}

export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return NONE;
  if (seconds < 1) return `${WHOLE.format(seconds * 1000)} ms`;
  if (seconds < 60) return `${FINE.format(seconds)} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const words = [];
  let left = Math.round(seconds);
  for (const [size, unit] of parts) {
    if (left >= size && words.length < 2) {
      words.push(`${Math.floor(left / size)} ${unit}`);
      left %= size;
    } else if (words.length) break;
  }
  return words.join(" ");
}

export function when(ms) {
  if (!ms) return NONE;
  return new Date(ms).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
}

export function ago(ms) {
  if (!ms) return NONE;
  const seconds = (Date.now() - ms) / 1000;
  return seconds < 2 ? "just now" : `${duration(Math.round(seconds))} ago`;
}

// `rabbit@host-1` where several nodes have their own hosts, `rabbit` where the host says nothing.
export function nodeName(name, names) {
  const [own, host] = name.split("@");
  const owns = new Set(names.map((one) => one.split("@")[0]));
  if (owns.size === names.length) return own;
  return new Set(names.map((one) => one.split("@")[1])).size === names.length ? host : name;
}
