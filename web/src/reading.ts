/** Reading the selection: where labels and clusters disagree, and how scores are spread. */

import { classColour, STATES } from "./colours";
import { brief, count, h, perFrame, percent, svg } from "./dom";
import type { Model } from "./model";

const BINS = 36;
const MATRIX_LIMIT = 20;
const MATRIX_TITLE = "Labels against the clusters they lie in";

export class Reading {
  readonly element = h("section", { className: "reading", "aria-label": "Reading" });
  private readonly refresh = perFrame(() => {
    if (!this.element.hidden) this.render();
  });

  constructor(private readonly model: Model) {
    model.on(["decisions", "preview", "theme", "places"], this.refresh);
  }

  render(): void {
    if (this.model.n === 0) {
      this.element.replaceChildren(h("p", { className: "note" }, "There is nothing to read in an empty selection."));
      return;
    }
    const histogram = this.model.info.scores ? [this.histogram()] : [];
    this.element.replaceChildren(this.bars(), this.confusion(), ...histogram);
  }

  /** Dropped per class, the most first. */
  private bars(): HTMLElement {
    const { model } = this;
    const counts = model.classCounts.map((one, label) => ({ ...one, label, share: one.total ? one.dropped / one.total : 0 }));
    counts.sort((a, b) => b.share - a.share);
    const most = Math.max(1e-9, counts[0]?.share ?? 0);
    const all = counts.reduce((sum, one) => sum + one.dropped, 0) / model.n;
    const rows = counts.slice(0, 40).map((one) => {
      const bar = h("span", { className: "bar" });
      bar.style.width = `${(100 * one.share) / most}%`;
      bar.style.backgroundColor = classColour(one.label, model.info.classes.length);
      return h(
        "button",
        {
          type: "button",
          className: "bar-row",
          title: `Show the ${count(one.dropped)} dropped of this class`,
          onclick: () => this.pickDropped(one.label),
        },
        h("span", { className: "text" }, model.info.classes[one.label] ?? ""),
        h("span", { className: "track" }, bar),
        h("span", { className: "number" }, `${count(one.dropped)} · ${percent(one.share)}`),
      );
    });
    return h(
      "div",
      { className: "block" },
      h("h3", {}, "Dropped per class"),
      h("p", { className: "note" }, `${percent(all, 2)} overall. Click a bar to look at them.`),
      ...rows,
    );
  }

  private pickDropped(label: number): void {
    const { model } = this;
    const rows = [...Array(model.n).keys()].filter((row) => model.label[row] === label && !model.kept(row));
    model.pick(rows, `dropped ${model.info.classes[label] ?? ""}`);
  }

  /** Rows: a sample's label; columns: the label that prevails around it on the map. */
  private confusion(): HTMLElement {
    const { model } = this;
    const { place } = model;
    if (place === null) {
      return h("div", { className: "block" }, h("h3", {}, MATRIX_TITLE), h("p", { className: "note", role: "status" }, "Looking at every sample's neighbours…"));
    }
    const classes = model.info.classes.length;
    const counts = new Int32Array(classes * classes);
    for (let i = 0; i < model.n; i++) {
      const at = (model.label[i] ?? 0) * classes + (place[i] ?? 0);
      counts[at] = (counts[at] ?? 0) + 1;
    }
    const shown = this.shownClasses(counts, classes);
    let most = 1;
    for (const a of shown) for (const b of shown) if (a !== b) most = Math.max(most, counts[a * classes + b] ?? 0);
    const head = h("tr", {}, h("td"), ...shown.map((b) => h("th", { scope: "col", title: model.info.classes[b] ?? "" }, short(model, b))));
    const rows = shown.map((a) =>
      h(
        "tr",
        {},
        h("th", { scope: "row", title: model.info.classes[a] ?? "" }, short(model, a)),
        ...shown.map((b) => this.matrixCell(a, b, counts[a * classes + b] ?? 0, most)),
      ),
    );
    const own = [...Array(classes).keys()].reduce((sum, a) => sum + (counts[a * classes + a] ?? 0), 0);
    return h(
      "div",
      { className: "block" },
      h("h3", {}, MATRIX_TITLE),
      h(
        "p",
        { className: "note" },
        model.info.layout === "map"
          ? `${percent(own / model.n)} lie among their own. A row is a label, a column the class that surrounds it on the map. Click a cell to look.`
          : "This selection has no map of its own, so every sample lies with its class.",
      ),
      h("div", { className: "matrix-box" }, h("table", { className: "matrix" }, head, ...rows)),
    );
  }

  private shownClasses(counts: Int32Array, classes: number): number[] {
    const all = [...Array(classes).keys()];
    if (classes <= MATRIX_LIMIT) return all;
    const strangers = all.map((a) => all.reduce((sum, b) => sum + (a === b ? 0 : (counts[a * classes + b] ?? 0)), 0));
    const order = all.sort((a, b) => (strangers[b] ?? 0) - (strangers[a] ?? 0));
    return order.slice(0, MATRIX_LIMIT).sort((a, b) => a - b);
  }

  private matrixCell(a: number, b: number, n: number, most: number): HTMLElement {
    const { model } = this;
    const [label, place] = [model.info.classes[a] ?? "", model.info.classes[b] ?? ""];
    const text = `${count(n)} ${label} lie among ${place}`;
    const button = h(
      "button",
      { type: "button", title: text, "aria-label": text, disabled: n === 0, onclick: () => this.pickCell(a, b, `${label} among ${place}`) },
      n > 9999 ? `${Math.round(n / 1000)}k` : String(n || ""),
    );
    if (a === b) button.classList.add("own");
    else button.style.setProperty("--heat", String(Math.sqrt(n / most)));
    return h("td", {}, button);
  }

  private pickCell(a: number, b: number, why: string): void {
    const { model } = this;
    model.pick(
      [...Array(model.n).keys()].filter((row) => model.label[row] === a && model.place?.[row] === b),
      why,
    );
  }

  private histogram(): HTMLElement {
    const { model } = this;
    const order = model.suspicious();
    // The top half percent is put into the last bin: a long tail would squeeze the rest.
    const high = model.score[order[Math.floor(model.n * 0.005)] ?? 0] ?? 1;
    const low = model.score[order[model.n - 1] ?? 0] ?? 0;
    const kept = new Int32Array(BINS);
    const dropped = new Int32Array(BINS);
    for (let i = 0; i < model.n; i++) {
      const at = Math.min(BINS - 1, Math.max(0, Math.floor((((model.score[i] ?? 0) - low) / (high - low || 1)) * BINS)));
      const into = model.kept(i) ? kept : dropped;
      into[at] = (into[at] ?? 0) + 1;
    }
    const tallest = Math.max(1, ...kept.map((n, at) => n + (dropped[at] ?? 0)));
    const [width, height] = [360, 96];
    const step = width / BINS;
    const bars = [...kept.keys()].flatMap((at) => {
      const bottom = ((kept[at] ?? 0) / tallest) * (height - 16);
      const top = ((dropped[at] ?? 0) / tallest) * (height - 16);
      return [
        svg("rect", { x: at * step + 0.5, width: step - 1, y: height - 14 - bottom, height: bottom, fill: STATES.kept }),
        svg("rect", { x: at * step + 0.5, width: step - 1, y: height - 14 - bottom - top, height: top, fill: STATES.dropped }),
      ];
    });
    return h(
      "div",
      { className: "block" },
      h("h3", {}, "Scores"),
      h("p", { className: "note" }, "Blue is kept, orange dropped; higher is more suspicious."),
      svg(
        "svg",
        { viewBox: `0 0 ${width} ${height}`, class: "histogram", role: "img", "aria-label": "Histogram of scores, kept and dropped" },
        ...bars,
        svg("text", { x: 0, y: height - 2 }, brief(low)),
        svg("text", { x: width, y: height - 2, "text-anchor": "end" }, `${brief(high)} and more`),
      ),
    );
  }
}

function short(model: Model, label: number): string {
  const name = model.info.classes[label] ?? "";
  return name.length > 5 ? `${name.slice(0, 4)}.` : name;
}
