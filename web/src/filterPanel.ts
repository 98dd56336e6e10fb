/** The settings of the filter, with a live preview. Nothing is written until "Save as". */

import { brief, button, count, h, percent, select, setOptions } from "./dom";
import { errorText, type FilterInfo, type FilterSettings } from "./dataSource";
import { EPS_STEPS, EpsCurve } from "./epsCurve";
import type { Model } from "./model";

const MAX_SHARE = 0.6;

export class FilterPanel {
  readonly element: HTMLElement;
  private readonly method = select("method", "Method", () => {
    this.updateFields();
    this.changed("share");
  });
  private readonly eps = new Slider("eps", "eps", [0, EPS_STEPS, 1], () => this.changed("eps"));
  private readonly share = new Slider("share", "Share to drop", [0, MAX_SHARE, 0.001], () => this.changed("share"));
  private readonly minSamples = new Slider("min-samples", "Min samples", [2, 50, 1], () => {
    this.changed("share");
    void this.model.attempt(() => this.updateCurve());
  });
  private readonly knee = h("input", { type: "checkbox", id: "knee", onchange: () => this.changed(this.leading) });
  private readonly kneeField = h("label", { className: "check" }, this.knee, "one eps per class (knee of its curve)");
  private readonly curve = new EpsCurve((step) => {
    this.eps.value = step;
    this.changed("eps");
  });
  private readonly curveField = h("div", { className: "curve-box" }, this.curve.element);
  private readonly result = h("p", { className: "result", id: "result", "aria-live": "polite" }, "Preparing the filter…");
  private readonly saveAs = button("act primary", () => this.toggleForm(), { id: "use", disabled: true }, "Save as…");
  private readonly reset = button("quiet", () => this.resetSettings(), { id: "reset", disabled: true }, "Reset");
  private readonly name = h("input", { type: "text", id: "new-name", "aria-label": "Name of the new selection", maxlength: 100 });
  private readonly form = h(
    "form",
    { className: "row use", hidden: true, onsubmit: (event: Event) => this.save(event) },
    this.name,
    h("button", { type: "submit", className: "act primary", id: "write" }, "Save"),
  );
  private info: FilterInfo | null = null;
  /** Which slider was moved last; the other one follows. */
  private leading: "eps" | "share" = "share";
  private pending: FilterSettings | null = null;
  private changedAt = 0;
  private busy = false;
  /** Increases with every reset; previews requested before it are ignored. */
  private turn = 0;

  /** `drawn` resolves once the map shows the preview; the latency is measured up to then. */
  constructor(private readonly model: Model, private readonly drawn: () => Promise<void>) {
    const { live } = model.source;
    const [title, actions] = [h("div", { className: "row spread" }, h("h2", {}, "Filter"), this.method), h("div", { className: "row" }, live ? this.saveAs : null, this.reset)];
    const sliders = [this.eps.element, this.share.element, live ? this.minSamples.element : null];
    const attributes = { className: "panel filter-panel", "aria-label": "Filter", hidden: model.n === 0 };
    this.element = h("section", attributes, title, this.curveField, ...sliders, this.kneeField, this.result, actions, this.form);
    model.on(["colour"], () => {
      // The server sends clusters only while they are shown.
      if (model.colourBy === "cluster" && model.preview !== null) this.request();
    });
    model.on(["decisions"], () => this.showPreview());
    model.on(["preview"], () => {
      this.saveAs.disabled = this.reset.disabled = model.preview === null;
      if (model.preview === null) this.form.hidden = true;
    });
    this.updateFields();
  }

  /** Load what the server needs seconds to prepare for a million samples. */
  async load(): Promise<void> {
    try {
      this.info = await this.model.source.filterInfo();
      setOptions(this.method, Object.entries(this.info.methods));
      this.resetSettings();
      this.element.dataset["ready"] = "true";
    } catch (error) {
      this.result.textContent = `The filter settings are not available. ${errorText(error)}`;
    }
  }

  private settings(): FilterSettings {
    const method = this.method.value;
    if (method !== "network") return { method, share: this.share.value };
    const settings: FilterSettings = { method, min_samples: this.minSamples.value };
    if (this.knee.checked) settings.knee = true;
    else if (this.leading === "eps") settings.eps = this.curve.epsAt(this.eps.value);
    else settings.share = this.share.value;
    return settings;
  }

  /** Go back to the selection as it was opened. */
  private resetSettings(): void {
    if (this.info === null) return;
    const { min_samples: minSamples, share, eps, curve } = this.info;
    this.pending = null;
    this.turn++;
    this.minSamples.include(minSamples);
    this.minSamples.value = minSamples;
    this.share.value = share;
    this.knee.checked = false;
    this.curve.draw(curve);
    this.eps.value = this.curve.stepAt(eps ?? 0);
    this.leading = "share";
    this.updateFields();
    this.updateTexts(eps, share);
    const small = this.method.value === "network" && this.curve.flat;
    this.result.textContent = small ? "Every class has fewer samples than min samples: DBSCAN drops nothing." : "";
    if (this.model.preview !== null) this.model.setPreview(null);
  }

  private updateFields(): void {
    // Until the settings are known all fields keep their place, so that nothing jumps.
    const loading = this.info === null;
    const network = loading ? this.model.info.by_dbscan : this.method.value === "network";
    this.minSamples.element.hidden = !network;
    for (const field of [this.curveField, this.eps.element, this.kneeField]) field.hidden = !network || (!loading && this.curve.flat);
    const none = this.method.options.length === 0;
    for (const input of [this.method, this.share.input, this.eps.input, this.minSamples.input, this.knee]) input.disabled = none;
  }

  private changed(leading: "eps" | "share"): void {
    this.leading = leading;
    if (leading === "eps") this.knee.checked = false;
    this.request();
  }

  /** One request at a time; of the settings chosen meanwhile only the latest are sent. */
  private request(): void {
    this.pending = this.settings();
    this.changedAt = performance.now();
    if (!this.busy) void this.sendPending();
  }

  private async sendPending(): Promise<void> {
    this.busy = true;
    while (this.pending !== null) {
      const [settings, moved] = [this.pending, this.changedAt];
      this.pending = null;
      await this.model.attempt(async () => {
        const turn = this.turn;
        const preview = await this.model.source.preview(settings, this.model.colourBy === "cluster");
        if (turn !== this.turn) return;
        this.model.setPreview(preview);
        this.showPreview();
        const applied = performance.now();
        await this.drawn();
        performance.clearMeasures("preview");
        performance.measure("preview", { start: moved, detail: { moved, ...preview.times, applied, server: preview.numbers.milliseconds } });
      });
    }
    this.busy = false;
  }

  /** Show the numbers of the preview, also on the slider that was not moved. */
  private showPreview(): void {
    const numbers = this.model.preview?.numbers;
    if (numbers === undefined) return;
    const [{ share, dropped }, { counts, n }] = [numbers, this.model];
    const eps = typeof numbers.eps === "number" ? numbers.eps : undefined;
    const follows = this.leading === "eps" || this.knee.checked;
    if (follows) this.share.value = share;
    else if (eps !== undefined) this.eps.value = this.curve.stepAt(eps);
    this.updateTexts(eps, share, follows ? share : this.share.value);
    this.result.replaceChildren("drops ", h("b", {}, count(dropped)), ` of ${count(n)}, ${percent(share, 2)}${counts.overridden ? `; ${count(counts.dropped)} with decisions by hand` : ""}`);
  }

  /** `wanted` is the share to drop, which may lie beyond the end of the slider. */
  private updateTexts(eps: number | undefined, share: number, wanted = share): void {
    this.eps.text = eps === undefined ? "per class" : brief(eps);
    this.share.text = percent(wanted);
    this.minSamples.text = String(this.minSamples.value);
    this.curve.mark(eps, share);
  }

  /** Load the curve of another min samples. */
  private async updateCurve(): Promise<void> {
    const minSamples = this.minSamples.value;
    const { curve } = await this.model.source.filterInfo(minSamples);
    if (this.minSamples.value !== minSamples) return;
    this.curve.draw(curve);
    this.updateFields();
    this.showPreview();
  }

  private toggleForm(): void {
    this.form.hidden = !this.form.hidden;
    if (this.form.hidden) return;
    const share = (100 * (this.model.preview?.numbers.share ?? 0)).toFixed(1);
    this.name.value = `${this.model.info.name}-${this.method.value}-${share}pc`;
    this.name.focus();
    this.name.select();
  }

  private save(event: Event): void {
    event.preventDefault();
    void this.model.attempt(async () => {
      const { selection, path } = await this.model.source.saveSelection(this.settings(), this.name.value);
      this.form.hidden = true;
      this.model.notify(`Saved ${path}. The list of selections contains it as “${selection}”.`);
    });
  }
}

/** A range input with its name and the text of its value. */
class Slider {
  readonly input: HTMLInputElement;
  readonly element: HTMLElement;
  private readonly output: HTMLElement;

  constructor(id: string, name: string, [min, max, step]: [number, number, number], oninput: () => void) {
    this.input = h("input", { type: "range", id, min, max, step, "aria-label": name, oninput });
    this.output = h("output", { for: id, id: `${id}-value` });
    this.element = h("div", { className: "slider" }, h("span", {}, name), this.output, this.input);
  }

  get value(): number {
    return Number(this.input.value);
  }

  /** The browser limits it to the range of the slider. */
  set value(value: number) {
    this.input.value = String(value);
  }

  /** Extend the range to a value. */
  include(value: number): void {
    this.input.min = String(Math.min(value, Number(this.input.min)));
    this.input.max = String(Math.max(value, Number(this.input.max)));
  }

  set text(text: string) {
    this.output.textContent = text;
    this.input.setAttribute("aria-valuetext", text);
  }
}
