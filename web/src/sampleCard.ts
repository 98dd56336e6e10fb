/** One sample: its image, facts and neighbours. Used for the sample under the pointer and for the focused one. */

import { classColour } from "./colours";
import { arrowTo, brief, button, h, icon, select, setOptions, swatch } from "./dom";
import { NO_ROW, type Model } from "./model";
import type { Thumbnails } from "./thumbnails";

const NEIGHBOURS = 6;

export class SampleCard {
  readonly element: HTMLElement;
  onNeighbours: (rows: number[]) => void = () => undefined;
  private row = NO_ROW;
  private space: "map" | "features" = "map";
  /** Increases with every call of `show`; answers to an older one are ignored. */
  private version = 0;
  private neighbours: number[] = [];
  private states = "";

  /** Without `decide` the card has no buttons and hides from screen readers. */
  constructor(
    private readonly model: Model,
    private readonly thumbnails: Thumbnails,
    private readonly decide: ((row: number, keep: boolean) => void) | null,
  ) {
    const large = { className: "card large", role: "group", "aria-label": "Focused sample" };
    this.element = h("div", { ...(decide === null ? { className: "card hover", "aria-hidden": "true" } : large), hidden: true });
  }

  show(row: number): void {
    this.row = row;
    this.version++;
    this.element.hidden = row === NO_ROW;
    if (row === NO_ROW) {
      this.onNeighbours([]);
      return;
    }
    const { model } = this;
    const [kept, byHand, other] = [model.kept(row), model.overridden[row] === 1, model.otherClasses(row)[0]];
    const state = h("span", { className: `state ${kept ? "kept" : "dropped"}` }, kept ? "kept" : "dropped", byHand ? " by hand" : "", (model.newLabel?.[row] ?? -1) >= 0 ? ", new label" : "");
    // The server knows a person's reason; an export contains it.
    const reason = h("p", { className: "why" }, byHand && model.source.live ? "" : model.reason(row));
    const strip = h("div", { className: "near" });
    const name = h(
      "p",
      { className: "name" },
      swatch(classColour(model.label[row] ?? 0, model.info.classes.length)),
      h("b", {}, h("bdi", {}, model.className(row))),
      arrowTo(other),
      state,
    );
    const facts = [name, h("p", { className: "id", title: model.id(row) }, model.id(row)), h("p", { className: "numbers" }, this.numbers(row)), reason];
    this.element.replaceChildren(this.picture(row), h("div", { className: "facts" }, ...facts, this.actions(row)), strip);
    if (this.space === "map") this.showNeighbours(strip, model.nearest(row, NEIGHBOURS));
    if (byHand || this.space === "features") void this.loadDetail(row, reason, strip);
  }

  /** Show the same sample again if it or a neighbour has changed. */
  refresh(): void {
    if (this.row !== NO_ROW && this.states !== this.currentStates()) this.show(this.row);
  }

  private currentStates(): string {
    return [this.row, ...this.neighbours].map((row) => this.model.stateOf(row)).join();
  }

  private picture(row: number): HTMLElement {
    const { model } = this;
    const src = model.source.imageUrl(model.id(row));
    const image =
      src === null
        ? this.thumbnails.canvas(row, "image")
        : h("img", { className: "image", alt: `${model.className(row)}, ${model.id(row)}`, src, "data-row": row });
    return h("div", { className: "picture" }, image);
  }

  private numbers(row: number): string {
    const { model } = this;
    const parts: string[] = [];
    if (model.info.scores) parts.push(`score ${brief(model.score[row] ?? 0)}`);
    if (model.votes !== null) parts.push(`votes ${Math.round(100 * (model.votes[row] ?? 0))} %`);
    const cluster = (model.preview?.cluster ?? model.cluster)[row] ?? -2;
    if (cluster >= 0) parts.push(`cluster ${cluster}`);
    else if (cluster === -1) parts.push("no cluster");
    return parts.join(" · ");
  }

  private actions(row: number): HTMLElement | null {
    const { decide, model } = this;
    if (decide === null) return null;
    const decisions = [
      button("act keep", () => decide(row, true), {}, icon("keep"), "Keep"),
      button("act drop", () => decide(row, false), {}, icon("drop"), "Drop"),
    ];
    const close = button("tool close", () => model.setFocus(NO_ROW), { "aria-label": "Close" }, icon("drop"));
    return h("div", { className: "row" }, ...(model.source.live ? decisions : []), close);
  }

  private showNeighbours(strip: HTMLElement, rows: number[]): void {
    const { model } = this;
    const title = h("span", { className: "caption" }, "Nearest ");
    if (this.decide !== null && model.info.features) {
      const space = select("neighbour-space", "Where to search for neighbours", (value) => {
        this.space = value as "map" | "features";
        this.show(this.row);
      });
      setOptions(space, [["map", "on the map"], ["features", "by features"]], this.space);
      title.append(space);
    } else title.append("on the map");
    const pictures = rows.map((other) => this.thumbnails.button(other, this.decide === null ? -1 : 0));
    strip.replaceChildren(title, h("div", { className: "strip" }, ...pictures));
    this.neighbours = rows;
    this.states = this.currentStates();
    this.onNeighbours(rows);
  }

  private async loadDetail(row: number, reason: HTMLElement, strip: HTMLElement): Promise<void> {
    const { version, model } = this;
    // Without an answer the card still shows what the page knows.
    const detail = await model.source.sample(model.id(row), this.space === "features" ? NEIGHBOURS : 0).catch(() => null);
    if (detail === null || version !== this.version) return;
    if (detail.override !== null) {
      const time = new Date(detail.override.time * 1000).toLocaleString();
      reason.textContent = detail.override.reason ? `“${detail.override.reason}”, ${time}` : time;
    }
    if (detail.neighbours !== undefined) this.showNeighbours(strip, detail.neighbours.map((one) => one.row));
  }
}
