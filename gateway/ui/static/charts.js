// Three charts in SVG, drawn at the width that they have, so that their text stays readable on a phone.
import { h, s } from "./dom.js";
import { number, percent, seconds, span as lasting, t, taskName } from "./text.js";

const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const color = (kind) => `var(--${kind})`;
const width = (box) => Math.max(box.clientWidth, 260);
const put = (box, height, label, ...parts) => {
  const w = width(box);
  box.replaceChildren(s("svg", { viewBox: `0 0 ${w} ${height}`, height, role: "img", "aria-label": label }, ...parts));
};
const text = (x, y, words, anchor = "start", className = "") => s("text", { x, y, "text-anchor": anchor, class: className }, words);
const legend = (rows) =>
  h("div", { class: "legend" }, rows.map(([name, kind, dash]) =>
    h("span", {}, s("svg", { "aria-hidden": "true" }, s("path", { d: "M0 5H26", stroke: color(kind), "stroke-width": 2.5, "stroke-dasharray": dash })), name)));

// Tasks on the left, pools on the right; a band's width is its share of the requests.
export function flow(box, rows, kinds) {
  const sum = (key) => {
    const found = new Map();
    for (const row of rows) found.set(row[key], (found.get(row[key]) ?? 0) + row.requests);
    return [...found].sort((a, b) => b[1] - a[1]);
  };
  const total = rows.reduce((all, row) => all + row.requests, 0);
  const tasks = sum("task"), pools = sum("pool");
  const w = width(box), gap = 14, most = Math.max(tasks.length, pools.length);
  const height = Math.max(190, Math.min(360, 60 + most * 34));
  const narrow = w < 480, left = narrow ? 110 : 150, right = w - (narrow ? 96 : 130);
  const stack = (nodes) => {
    const scale = (height - gap * nodes.length) / total;
    let y = gap / 2;
    return new Map(nodes.map(([name, count]) => {
      const node = { y, size: Math.max(count * scale, 2), count, used: 0, scale };
      y += count * scale + gap;
      return [name, node];
    }));
  };
  const from = stack(tasks), to = stack(pools), bands = [], names = [];
  const rank = new Map(pools.map(([name], i) => [name, i])), first = new Map(tasks.map(([name], i) => [name, i]));
  for (const row of [...rows].sort((a, b) => first.get(a.task) - first.get(b.task) || rank.get(a.pool) - rank.get(b.pool))) {
    const a = from.get(row.task), b = to.get(row.pool);
    const [ha, hb] = [row.requests * a.scale, row.requests * b.scale];
    const [ya, yb] = [a.y + a.used, b.y + b.used];
    a.used += ha; b.used += hb;
    const mid = (left + right) / 2;
    bands.push(s("path", {
      d: `M${left} ${ya}C${mid} ${ya} ${mid} ${yb} ${right} ${yb}V${yb + hb}C${mid} ${yb + hb} ${mid} ${ya + ha} ${left} ${ya + ha}Z`,
      fill: color(kinds.get(row.pool) ?? "soft"), "fill-opacity": 0.38,
    }, s("title", {}, `${taskName(row.task)} → ${row.pool}: ${number(row.requests)}`)));
  }
  const node = (x, one, fillColor) => s("rect", { x, y: one.y, width: 5, height: one.size, rx: 2, fill: fillColor });
  for (const [name, one] of from) names.push(node(left - 5, one, "var(--soft)"), text(left - 12, one.y + one.size / 2 + 4, `${taskName(name)} ${number(one.count)}`, "end"));
  for (const [name, one] of to) names.push(node(right, one, color(kinds.get(name) ?? "soft")), text(right + 12, one.y + one.size / 2 + 4, `${name} ${number(one.count)}`, "start", "name"));
  put(box, height, rows.map((row) => `${taskName(row.task)} → ${row.pool}: ${row.requests}`).join("; "), bands, names);
}

// Expected seconds against output tokens, both on logarithmic axes, one line for each pool.
export function breakEven(box, model, task, kinds) {
  const series = Object.entries(model.seconds[task] ?? {}).filter(([, values]) => values);
  const w = width(box), height = 250, left = 52, right = w - 14, top = 14, bottom = height - 30;
  const all = series.flatMap(([, values]) => values), xs = model.lengths;
  const low = Math.min(...all) * 0.85, high = Math.max(...all) * 1.15;
  const X = (n) => left + ((right - left) * Math.log(n / xs[0])) / Math.log(xs.at(-1) / xs[0]);
  const Y = (v) => bottom - ((bottom - top) * Math.log(v / low)) / Math.log(high / low);
  const parts = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++)
    for (const step of [1, 3]) {
      const v = step * 10 ** power;
      if (v >= low && v <= high) parts.push(s("path", { class: "grid", d: `M${left} ${Y(v)}H${right}` }), text(left - 8, Y(v) + 4, seconds(v), "end"));
    }
  for (const n of xs.filter((_, i) => i % (w < 420 ? 3 : 2) === 0)) parts.push(text(X(n), height - 12, number(n), "middle"));
  const seen = {}, rows = [];
  for (const [name, values] of series) {
    const kind = kinds.get(name) ?? "plain", dash = DASHES[(seen[kind] = (seen[kind] ?? -1) + 1) % DASHES.length];
    rows.push([`${name} (${number(model.running[name])} ${t("besides")})`, kind, dash]);
    parts.push(s("path", { d: "M" + values.map((v, i) => `${X(xs[i])} ${Y(v)}`).join("L"), fill: "none", stroke: color(kind), "stroke-width": 2.5, "stroke-dasharray": dash, "stroke-linejoin": "round" }));
  }
  const even = crossing(series, xs, kinds);
  if (even.at) {
    const x = X(even.at), flip = x > w * 0.6;
    parts.push(s("path", { class: "grid", d: `M${x} ${top}V${bottom}`, "stroke-dasharray": "3 3" }), text(x + (flip ? -6 : 6), top + 8, t("evenFrom", number(Math.round(even.at))), flip ? "end" : "start", "name"));
  }
  put(box, height, `${model.model}: ${even.words}`, parts);
  box.append(legend(rows));
  return even.words;
}

// From how many tokens on the best MTP pool beats the best plain one.
function crossing(series, xs, kinds) {
  const best = (kind) => xs.map((_, i) => Math.min(...series.filter(([name]) => kinds.get(name) === kind).map(([, values]) => values[i])));
  const [plain, mtp] = [best("plain"), best("mtp")];
  if (![...plain, ...mtp].every(Number.isFinite)) return { words: t("evenOne") };
  const ahead = xs.map((_, i) => Math.log(plain[i] / mtp[i]));
  const last = ahead.findLastIndex((gain) => gain <= 0);
  if (last === xs.length - 1) return { words: t("evenNever") };
  if (last < 0) return { words: t("evenAlways") };
  const share = -ahead[last] / (ahead[last + 1] - ahead[last]);
  const found = xs[last] * (xs[last + 1] / xs[last]) ** share;
  return { at: found, words: t("evenFrom", number(Math.round(found))) };
}

// Acceptance (solid) and gain in time per token (dashed) of each pool that drafts, over the last minutes.
export function overTime(box, points, alert) {
  const w = width(box), height = 250, left = 46, right = w - 14, top = 14, bottom = height - 30;
  const names = [...new Set(points.flatMap((p) => [...Object.keys(p.acceptance), ...Object.keys(p.gain)]))].sort();
  const values = points.flatMap((p) => [...Object.values(p.acceptance), ...Object.values(p.gain)]);
  const low = Math.min(0, ...values), high = Math.max(0.6, ...values) + 0.05;
  const end = points.at(-1).at, begin = Math.min(points[0].at, end - 60);
  const X = (at) => left + ((right - left) * (at - begin)) / (end - begin);
  const Y = (v) => bottom - ((bottom - top) * (v - low)) / (high - low);
  const parts = [];
  for (let v = Math.ceil(low / 0.2) * 0.2; v <= high; v += 0.2) parts.push(s("path", { class: "grid", d: `M${left} ${Y(v)}H${right}` }), text(left - 8, Y(v) + 4, percent(v), "end"));
  parts.push(s("path", { class: "alert", d: `M${left} ${Y(alert)}H${right}` }), text(right, Y(alert) - 4, t("alert", percent(alert)), "end"));
  for (const share of [0, 0.5, 1]) parts.push(text(left + (right - left) * share, height - 12, ago(end - begin - (end - begin) * share), share === 1 ? "end" : share ? "middle" : "start"));
  const rows = [], told = [];
  names.forEach((name, i) => {
    const hue = ["mtp", "warn", "good", "plain"][i % 4];
    for (const [what, dash] of [["acceptance", ""], ["gain", "5 4"]]) {
      const found = points.filter((p) => p[what][name] != null);
      if (!found.length) continue;
      const d = found.map((p, k) => `${k && p.at - found[k - 1].at < 15 ? "L" : "M"}${X(p.at)} ${Y(p[what][name])}`).join("");
      parts.push(s("path", { d: d + (found.length === 1 ? "h1" : ""), fill: "none", stroke: color(hue), "stroke-width": 2.5, "stroke-dasharray": dash, "stroke-linecap": "round" }));
      rows.push([`${name}: ${t(what)} ${percent(found.at(-1)[what][name])}`, hue, dash]);
      told.push(rows.at(-1)[0]);
    }
  });
  put(box, height, told.join("; "), parts);
  box.append(legend(rows));
}
const ago = (span) => (span < 1 ? t("nowWord") : t("ago", lasting(span)));
