/** The filter's knobs: move one and the map answers. Nothing is written until "Use this". */

import { brief, count, h, percent, svg } from "./dom";
import type { Model } from "./model";
import { Refused, type KnobsInfo, type Settings } from "./source";

const WIDTH = 248;
const HEIGHT = 84;
const FLOOR = HEIGHT - 14;
const SHARE_END = 0.6;
const TOO_SMALL = "Every class is smaller than min samples: density drops nothing here.";

export class Knobs {
  readonly element: HTMLElement;
  /** Resolves once the map shows the present preview; the latency is measured to there. */
  settled: () => Promise<void> = () => Promise.resolve();
  say: (text: string, wrong?: boolean) => void = () => undefined;
  private readonly method: HTMLSelectElement;
  private readonly eps: HTMLInputElement;
  private readonly share: HTMLInputElement;
  private readonly minSamples: HTMLInputElement;
  private readonly knee: HTMLInputElement;
  private readonly texts: { eps: HTMLElement; share: HTMLElement; minSamples: HTMLElement; result: HTMLElement };
  private readonly fields: { eps: HTMLElement; minSamples: HTMLElement; knee: HTMLElement; curve: HTMLElement };
  private readonly curve = svg("svg", {
    class: "curve",
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    role: "img",
    "aria-label": "Share dropped against eps",
  });
  private readonly use: HTMLFormElement;
  private readonly name: HTMLInputElement;
  private readonly buttons: { use: HTMLButtonElement; reset: HTMLButtonElement };
  private low = 0;
  private high = 0;
  private by: "eps" | "share" = "share";
  private asked: Settings | null = null;
  private movedAt = 0;
  /** The dashed line and the dot on the curve; the rest of it stays while a slider moves. */
  private readonly marker = svg("g", { class: "markers" }, svg("line", { class: "marker", y1: 4 }), svg("circle", { class: "marker", r: 4.5 }));
  private info: KnobsInfo | null = null;
  private busy = false;
  private small = false;

  /** The knobs rest until `describe` tells what they can do. */
  constructor(private readonly model: Model) {
    this.method = h("select", { id: "method", "aria-label": "Method" });
    this.eps = slider("eps", 0, 1000, 1, "eps");
    this.share = slider("share", 0, SHARE_END, 0.001, "Share to drop");
    this.minSamples = slider("min-samples", 2, 50, 1, "Minimum samples");
    this.knee = h("input", { type: "checkbox", id: "knee" });
    this.texts = { eps: out("eps"), share: out("share"), minSamples: out("min-samples"), result: h("p", { className: "result", id: "result", "aria-live": "polite" }) };
    this.fields = {
      eps: field("eps", this.eps, this.texts.eps),
      minSamples: field("Min samples", this.minSamples, this.texts.minSamples),
      knee: h("label", { className: "check" }, this.knee, "an eps per class, at its knee"),
      curve: h("div", { className: "curve-box" }, this.curve),
    };
    this.name = h("input", { type: "text", id: "new-name", "aria-label": "Name of the new selection", maxlength: 100 });
    this.use = h(
      "form",
      { className: "row use", hidden: true },
      this.name,
      h("button", { type: "submit", className: "act primary", id: "write" }, "Write"),
    );
    this.buttons = {
      use: h("button", { type: "button", className: "act primary", id: "use", disabled: true }, "Use this…"),
      reset: h("button", { type: "button", className: "quiet", id: "reset", disabled: true }, "Reset"),
    };
    const live = model.source.live;
    this.element = h(
      "section",
      { className: "panel knobs", "aria-label": "Filter" },
      h("div", { className: "row spread" }, h("h2", {}, "Filter"), this.method),
      this.fields.curve,
      this.fields.eps,
      field("Share to drop", this.share, this.texts.share),
      live ? this.fields.minSamples : null,
      this.fields.knee,
      this.texts.result,
      h("div", { className: "row" }, live ? this.buttons.use : null, this.buttons.reset),
      this.use,
    );
    this.wire();
    this.lay();
    this.texts.result.textContent = "Preparing the filter…";
    this.element.hidden = model.n === 0;
  }

  describe(info: KnobsInfo): void {
    this.info = info;
    this.method.replaceChildren(...Object.entries(info.methods).map(([name, text]) => h("option", { value: name }, text)));
    this.start(info);
    this.element.dataset["ready"] = "true";
  }

  fail(error: unknown): void {
    this.texts.result.textContent = `The knobs cannot be used: ${error instanceof Error ? error.message : String(error)}`;
  }

  /** What the sliders say. */
  settings(): Settings {
    const method = this.method.value;
    const share = Number(this.share.value);
    if (method !== "network") return { method, share };
    const settings: Settings = { method, min_samples: Number(this.minSamples.value) };
    if (this.knee.checked) settings.knee = true;
    else if (this.by === "eps") settings.eps = this.epsAt(Number(this.eps.value));
    else settings.share = share;
    return settings;
  }

  private wire(): void {
    this.eps.addEventListener("input", () => this.moved("eps"));
    this.share.addEventListener("input", () => this.moved("share"));
    this.knee.addEventListener("change", () => this.moved(this.by));
    this.minSamples.addEventListener("input", () => {
      this.by = "share";
      this.moved("share");
      void this.newCurve();
    });
    this.method.addEventListener("change", () => {
      this.lay();
      this.moved("share");
    });
    this.model.on(["colour"], () => {
      // Clusters are sent only while they are looked at.
      if (this.model.colourBy === "cluster" && this.model.preview !== null) this.ask();
    });
    this.model.on(["preview"], () => {
      const none = this.model.preview === null;
      this.buttons.use.disabled = none;
      this.buttons.reset.disabled = none;
      if (none) this.use.hidden = true;
    });
    this.curve.addEventListener("pointerdown", (event) => {
      this.curve.setPointerCapture(event.pointerId);
      this.drag(event);
    });
    this.curve.addEventListener("pointermove", (event) => {
      if (event.buttons) this.drag(event);
    });
    this.buttons.reset.addEventListener("click", () => {
      this.asked = null;
      if (this.info !== null) this.start(this.info);
      this.model.setPreview(null);
    });
    this.buttons.use.addEventListener("click", () => {
      this.use.hidden = !this.use.hidden;
      if (!this.use.hidden) {
        this.name.value = this.suggestion();
        this.name.focus();
        this.name.select();
      }
    });
    this.use.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.write();
    });
  }

  private start(info: KnobsInfo): void {
    this.minSamples.value = String(info.min_samples);
    this.share.value = String(Math.min(info.share, SHARE_END));
    this.knee.checked = false;
    this.drawCurve();
    this.eps.value = String(this.sliderAt(info.eps ?? this.low));
    this.by = "share";
    this.lay();
    this.label(info.eps, info.share, null);
  }

  private lay(): void {
    // Until they are described, all have their place, so that nothing jumps.
    const waiting = this.info === null;
    const network = waiting ? this.model.info.layout === "map" && this.model.n > 0 : this.method.value === "network";
    for (const part of Object.values(this.fields)) part.hidden = !network;
    // Where every class is smaller than min samples, no eps drops anything.
    const flat = network && !waiting && this.high <= this.low;
    for (const part of [this.fields.curve, this.fields.eps, this.fields.knee]) part.hidden ||= flat;
    this.small = flat;
    const none = this.method.options.length === 0;
    for (const input of [this.method, this.share, this.eps, this.minSamples, this.knee]) input.disabled = none;
  }

  private moved(by: "eps" | "share"): void {
    this.by = by;
    if (this.method.value === "network" && by === "eps") this.knee.checked = false;
    this.ask();
  }

  /** One request at a time; while it is under way, only the latest wish is kept. */
  private ask(): void {
    this.asked = this.settings();
    this.movedAt = performance.now();
    if (!this.busy) void this.answer();
  }

  private async answer(): Promise<void> {
    this.busy = true;
    while (this.asked !== null) {
      const wish = this.asked;
      this.asked = null;
      const moved = this.movedAt;
      try {
        const preview = await this.model.source.preview(wish, this.model.colourBy === "cluster");
        this.model.setPreview(preview);
        const { numbers } = preview;
        const eps = typeof numbers.eps === "number" ? numbers.eps : undefined;
        this.follow(eps, numbers.share);
        this.label(eps, numbers.share, numbers.dropped);
        const applied = performance.now();
        await this.settled();
        const detail = { moved, ...preview.times, applied, server: numbers.milliseconds };
        performance.clearMeasures("knob");
        performance.measure("knob", { start: moved, detail });
      } catch (error) {
        this.say(error instanceof Refused ? error.message : String(error), true);
      }
    }
    this.busy = false;
  }

  /** Let the slider that was not moved show what the other one means. */
  private follow(eps: number | undefined, share: number): void {
    if (this.by === "eps" || this.knee.checked) this.share.value = String(Math.min(share, SHARE_END));
    if (this.by === "share" && eps !== undefined) this.eps.value = String(this.sliderAt(eps));
  }

  private label(eps: number | undefined, share: number, dropped: number | null): void {
    this.texts.eps.textContent = eps === undefined ? "per class" : brief(eps);
    this.texts.share.textContent = percent(Number(this.share.value));
    this.texts.minSamples.textContent = this.minSamples.value;
    for (const [input, text] of [
      [this.eps, this.texts.eps],
      [this.share, this.texts.share],
    ] as const) input.setAttribute("aria-valuetext", text.textContent);
    if (dropped === null) this.texts.result.textContent = this.small ? TOO_SMALL : "";
    else this.texts.result.replaceChildren("drops ", h("b", {}, count(dropped)), ` of ${count(this.model.n)}, ${percent(share, 2)}`);
    this.pointAt(eps, share);
  }

  private async newCurve(): Promise<void> {
    const at = Number(this.minSamples.value);
    try {
      const info = await this.model.source.knobs(at);
      if (Number(this.minSamples.value) !== at) return;
      if (this.info === null) return;
      this.info = { ...this.info, ...(info.curve === undefined ? {} : { curve: info.curve }) };
      this.drawCurve();
      this.lay();
      const now = this.model.preview?.numbers;
      const eps = typeof now?.eps === "number" ? now.eps : undefined;
      if (eps !== undefined) this.eps.value = String(this.sliderAt(eps));
      this.pointAt(eps, now?.share ?? this.info.share);
    } catch (error) {
      this.say(String(error), true);
    }
  }

  private drawCurve(): void {
    const curve = this.info?.curve;
    const positive = (curve?.eps ?? []).filter((eps) => eps > 0);
    this.low = positive[0] ?? 1;
    this.high = positive[positive.length - 1] ?? 1;
    if (curve === undefined) return;
    const line = curve.eps
      .map((value, n) => (value > 0 ? `${this.across(value).toFixed(1)},${up(curve.share[n] ?? 0).toFixed(1)}` : ""))
      .filter(Boolean)
      .join(" ");
    this.curve.replaceChildren(
      svg("line", { x1: 0, x2: WIDTH, y1: FLOOR, y2: FLOOR, class: "axis" }),
      svg("polygon", { points: `0,${FLOOR} 0,${up(1)} ${line} ${WIDTH},${FLOOR}`, class: "area" }),
      svg("polyline", { points: line, class: "line" }),
      svg("text", { x: 2, y: HEIGHT - 3 }, `eps ${brief(this.low)}`),
      svg("text", { x: WIDTH - 2, y: HEIGHT - 3, "text-anchor": "end" }, brief(this.high)),
      svg("text", { x: WIDTH - 2, y: 10, "text-anchor": "end" }, "share dropped"),
      this.marker,
    );
  }

  private pointAt(eps: number | undefined, share: number): void {
    const there = eps !== undefined && eps > 0;
    this.marker.classList.toggle("away", !there);
    const [line, dot] = this.marker.children;
    if (!there || line === undefined || dot === undefined) return;
    const x = String(Math.max(0, Math.min(WIDTH, this.across(eps))));
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    line.setAttribute("y2", String(FLOOR));
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", String(up(share)));
  }

  private drag(event: PointerEvent): void {
    const box = this.curve.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    this.eps.value = String(Math.round(1000 * Math.max(0, Math.min(1, share))));
    this.moved("eps");
  }

  /** eps runs on a logarithmic scale from the least to the greatest threshold. */
  private epsAt(slider: number): number {
    return this.low * (this.high / this.low) ** (slider / 1000);
  }

  private sliderAt(eps: number): number {
    if (this.high <= this.low || eps <= this.low) return 0;
    return Math.round((1000 * Math.log(eps / this.low)) / Math.log(this.high / this.low));
  }

  private across(eps: number): number {
    return (this.sliderAt(eps) / 1000) * WIDTH;
  }

  private suggestion(): string {
    const numbers = this.model.preview?.numbers;
    const share = ((numbers?.share ?? 0) * 100).toFixed(1);
    return `${this.model.info.name}-${this.method.value}-${share}pc`;
  }

  private async write(): Promise<void> {
    try {
      const { selection, path } = await this.model.source.use(this.settings(), this.name.value);
      this.use.hidden = true;
      this.say(`Written: ${path}. It is in the list of selections as “${selection}”.`);
    } catch (error) {
      this.say(error instanceof Refused ? error.message : String(error), true);
    }
  }
}

function up(share: number): number {
  return 8 + (1 - share) * (HEIGHT - 22);
}

function slider(id: string, min: number, max: number, step: number, text: string): HTMLInputElement {
  return h("input", { type: "range", id, min, max, step, "aria-label": text });
}

function out(id: string): HTMLElement {
  return h("output", { for: id, id: `${id}-value` });
}

function field(text: string, input: HTMLElement, value: HTMLElement): HTMLElement {
  return h("div", { className: "knob" }, h("span", {}, text), value, input);
}
