// Elements without markup in strings: whatever comes from outside becomes text, never HTML.
const SVG = "http://www.w3.org/2000/svg";

const fill = (made, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) if (value != null && value !== false) made.setAttribute(name, value);
  made.append(...children.flat().filter((child) => child != null && child !== false));
  return made;
};
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const at = (id) => document.getElementById(id);

// A bar's length is set by script, since the page allows no inline style.
export const bar = (share, kind) => {
  const inner = h("i");
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("div", { class: `bar ${kind}`, "aria-hidden": "true" }, inner);
};

// Keeps a select's choice while its options follow the policy.
export const options = (select, names, label = (name) => name) => {
  const wanted = names.map((name) => `${name}\n${label(name)}`).join("\n\n");
  if (select.dataset.names === wanted) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => h("option", { value: name }, label(name))));
  select.dataset.names = wanted;
  if (names.includes(chosen)) select.value = chosen;
};
