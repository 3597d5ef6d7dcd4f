// Each pool's expected time as a bar, the winner marked.
import { bar, h } from "./dom.js";
import { seconds, t } from "./text.js";

export function race(pools, won) {
  const slowest = Math.max(...pools.map((pool) => pool.seconds ?? 0), 1e-9);
  return h("div", { class: "race" }, pools.flatMap((pool) => {
    const mark = { class: pool.pool === won ? "won" : "" };
    return [h("span", mark, pool.pool), bar((pool.seconds ?? 0) / slowest, pool.kind), h("span", mark, seconds(pool.seconds), pool.out ? h("span", { class: "warn" }, ` ${t("out")}${pool.out}`) : "")];
  }));
}
