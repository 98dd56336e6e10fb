/** The tab Analysis: dropped samples per class, labels against neighbourhoods, and the scores. */

import { classColour, STATES } from "./colours";
import { brief, button, count, h, percent, svg } from "./dom";
import type { Model } from "./model";

const BARS = 40;
const BINS = 36;
const MATRIX_CLASSES = 20;
const [WIDTH, HEIGHT] = [360, 96];

export class Analysis {
  readonly element = h("section", { className: "analysis", "aria-label": "Analysis" });

  constructor(private readonly model: Model) {}

  render(): void {
    const { n, info } = this.model;
    const blocks = n === 0 ? [note("This selection contains no samples.")] : [this.bars(), this.matrix()];
    if (n > 0 && info.scores) blocks.push(this.histogram());
    this.element.replaceChildren(...blocks);
  }

  private className(label: number): string {
    return this.model.info.classes[label] ?? "";
  }

  /** Share dropped per class, largest first. */
  private bars(): HTMLElement {
    const { model } = this;
    const counts = model.classCounts.map((one, label) => ({ ...one, label, share: one.total ? one.dropped / one.total : 0 }));
    counts.sort((a, b) => b.share - a.share);
    const largest = Math.max(1e-9, counts[0]?.share ?? 0);
    const rows = counts.slice(0, BARS).map(({ label, share, dropped }) => {
      const bar = h("span", { className: "bar" });
      bar.style.width = `${(100 * share) / largest}%`;
      bar.style.backgroundColor = classColour(label, model.info.classes.length);
      const pick = (): void => {
        model.pick(model.rowsWhere((row) => model.label[row] === label && !model.kept(row)), `dropped ${this.className(label)}`);
      };
      return button(
        "bar-row",
        pick,
        { title: `Show the dropped samples of this class: ${count(dropped)}` },
        h("span", { className: "text" }, this.className(label)),
        h("span", { className: "track" }, bar),
        h("span", { className: "number" }, `${count(dropped)} · ${percent(share)}`),
      );
    });
    const overall = `${percent(model.counts.dropped / model.n, 2)} overall. Click a bar to show the samples.`;
    return block("Dropped per class", note(overall), ...rows);
  }

  /** Rows: the label of a sample; columns: the majority label around it on the map. */
  private matrix(): HTMLElement {
    const { model } = this;
    const title = "Labels and neighbourhoods";
    const around = model.neighbourhoodLabel;
    if (around === null) return block(title, h("p", { className: "note", role: "status" }, "Computing the neighbourhood of every sample…"));
    // How many samples of each class lie among another; the matrix shows the classes with most.
    const mixed = model.info.classes.map((_, label) => ({ label, count: 0 }));
    for (let row = 0; row < model.n; row++) {
      const one = mixed[model.label[row] as number];
      if (one !== undefined && around[row] !== one.label) one.count++;
    }
    const others = mixed.reduce((sum, one) => sum + one.count, 0);
    const shown = mixed.sort((a, b) => b.count - a.count).slice(0, MATRIX_CLASSES).map((one) => one.label).sort((a, b) => a - b);
    const indexByLabel = new Map(shown.map((label, index) => [label, index]));
    const counts = shown.map(() => new Int32Array(shown.length));
    for (let row = 0; row < model.n; row++) {
      const [a, b] = [indexByLabel.get(model.label[row] as number), indexByLabel.get(around[row] as number)];
      const line = a === undefined ? undefined : counts[a];
      if (line !== undefined && b !== undefined) (line[b] as number) += 1;
    }
    const most = Math.max(1, ...counts.flatMap((line, a) => [...line].filter((_, b) => a !== b)));
    const heading = (label: number, scope: string): HTMLElement => h("th", { scope, title: this.className(label) }, short(this.className(label)));
    const text =
      model.info.layout === "map"
        ? `${percent(1 - others / model.n)} of the samples lie among their own class. Rows are labels, columns are the class around the sample on the map. Click a cell to show its samples.`
        : "This selection has no map, so no neighbourhoods are known.";
    const rows = shown.map((a, n) => h("tr", {}, heading(a, "row"), ...shown.map((b, m) => this.cell(a, b, counts[n]?.[m] ?? 0, most))));
    const table = h("table", { className: "matrix" }, h("tr", {}, h("td"), ...shown.map((b) => heading(b, "col"))), ...rows);
    return block(title, note(text), h("div", { className: "matrix-box" }, table));
  }

  private cell(a: number, b: number, n: number, most: number): HTMLElement {
    const { model } = this;
    const [label, other] = [this.className(a), this.className(b)];
    const text = `${count(n)} ${label} lie among ${other}`;
    const pick = (): void => {
      model.pick(model.rowsWhere((row) => model.label[row] === a && model.neighbourhoodLabel?.[row] === b), `${label} among ${other}`);
    };
    const shown = n > 9999 ? `${Math.round(n / 1000)}k` : String(n || "");
    const element = button(a === b ? "own" : "", pick, { title: text, "aria-label": text, disabled: n === 0 }, shown);
    if (a !== b) element.style.setProperty("--heat", String(Math.sqrt(n / most)));
    return h("td", {}, element);
  }

  private histogram(): HTMLElement {
    const { model } = this;
    const order = model.suspicious();
    // The highest half percent share the last bin, or a long tail would squeeze the rest.
    const high = model.score[order[Math.floor(model.n * 0.005)] ?? 0] ?? 1;
    const low = model.score[order[model.n - 1] ?? 0] ?? 0;
    const [kept, dropped] = [new Int32Array(BINS), new Int32Array(BINS)];
    for (let row = 0; row < model.n; row++) {
      const bin = Math.floor((((model.score[row] as number) - low) / (high - low || 1)) * BINS);
      ((model.kept(row) ? kept : dropped)[Math.min(BINS - 1, Math.max(0, bin))] as number) += 1;
    }
    const tallest = Math.max(1, ...kept.map((n, bin) => n + (dropped[bin] ?? 0)));
    const bars = [...kept.keys()].flatMap((bin) => {
      const [lower, upper] = [kept, dropped].map((counts) => ((counts[bin] ?? 0) / tallest) * (HEIGHT - 16)) as [number, number];
      const bar = { x: (bin * WIDTH) / BINS + 0.5, width: WIDTH / BINS - 1 };
      return [
        svg("rect", { ...bar, y: HEIGHT - 14 - lower, height: lower, fill: STATES.kept }),
        svg("rect", { ...bar, y: HEIGHT - 14 - lower - upper, height: upper, fill: STATES.dropped }),
      ];
    });
    const chart = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "histogram", role: "img", "aria-label": "Histogram of scores, kept and dropped" },
      ...bars,
      svg("text", { x: 0, y: HEIGHT - 2 }, brief(low)),
      svg("text", { x: WIDTH, y: HEIGHT - 2, "text-anchor": "end" }, `${brief(high)} and more`),
    );
    return block("Scores", note("Blue is kept, orange is dropped. Higher scores are more suspicious."), chart);
  }
}

function block(title: string, ...children: Element[]): HTMLElement {
  return h("div", { className: "block" }, h("h3", {}, title), ...children);
}

function note(text: string): HTMLElement {
  return h("p", { className: "note" }, text);
}

function short(name: string): string {
  return name.length > 5 ? `${name.slice(0, 4)}.` : name;
}
