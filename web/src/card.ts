/** One sample: its image, what is known of it, and its neighbours. Used under the pointer and for the focus. */

import { classColour } from "./colours";
import { brief, h, icon, swatch } from "./dom";
import { NO_ROW, type Model } from "./model";
import type { Thumbs } from "./thumbs";

const NEIGHBOURS = 6;

export class Card {
  readonly element = h("div", { className: "card" });
  row = NO_ROW;
  onDecide: ((row: number, keep: boolean) => void) | null = null;
  onNeighbours: (rows: number[]) => void = () => undefined;
  private space: "map" | "features" = "map";
  private shown = 0;
  private near: number[] = [];
  private states = "";

  constructor(
    private readonly model: Model,
    private readonly thumbs: Thumbs,
    private readonly large: boolean,
  ) {
    this.element.classList.toggle("large", large);
    if (!large) return;
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", "Sample in focus");
  }

  show(row: number): void {
    this.row = row;
    const turn = ++this.shown;
    this.element.hidden = row === NO_ROW;
    if (row === NO_ROW) {
      this.onNeighbours([]);
      return;
    }
    const { model } = this;
    const kept = model.kept(row);
    const among = model.among(row);
    const state = h(
      "span",
      { className: `state ${kept ? "kept" : "dropped"}` },
      kept ? "kept" : "dropped",
      model.overruled[row] ? " by hand" : "",
    );
    const why = h("p", { className: "why" }, model.overruled[row] && !this.fixedReasons() ? "" : model.reason(row));
    const near = h("div", { className: "near" });
    this.element.replaceChildren(
      this.picture(row),
      h(
        "div",
        { className: "facts" },
        h(
          "p",
          { className: "name" },
          swatch(classColour(model.label[row] ?? 0, model.info.classes.length)),
          h("b", {}, h("bdi", {}, model.className(row))),
          among === null ? null : h("span", { className: "among" }, "→ ", h("bdi", {}, among)),
          state,
        ),
        h("p", { className: "id", title: model.id(row) }, model.id(row)),
        h("p", { className: "numbers" }, this.numbers(row)),
        why,
        this.large ? this.actions(row) : null,
      ),
      near,
    );
    this.neighbours(row, near, turn);
    if (model.overruled[row] || this.space === "features") void this.detail(row, why, near, turn);
  }

  /** Show the same sample again, if it or a neighbour is now kept or dropped instead. */
  renew(): void {
    if (this.row !== NO_ROW && this.states !== this.statesNow()) this.show(this.row);
  }

  private statesNow(): string {
    return [this.row, ...this.near].map((row) => `${this.model.shown[row]}${this.model.overruled[row]}`).join();
  }

  private fixedReasons(): boolean {
    return !this.model.source.live;
  }

  private picture(row: number): HTMLElement {
    const { model } = this;
    const address = model.source.imageUrl(model.id(row));
    const frame = h("div", { className: "picture" });
    if (address === null) frame.append(this.thumbs.canvas(row, "image"));
    else {
      const image = h("img", { className: "image", alt: `${model.className(row)}, ${model.id(row)}`, src: address });
      image.dataset["row"] = String(row);
      frame.append(image);
    }
    return frame;
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

  private actions(row: number): HTMLElement {
    const decide = this.onDecide;
    const buttons =
      decide === null || !this.model.source.live
        ? []
        : [
            h("button", { type: "button", className: "act keep", onclick: () => decide(row, true) }, icon("keep"), "Keep"),
            h("button", { type: "button", className: "act drop", onclick: () => decide(row, false) }, icon("drop"), "Drop"),
          ];
    const close = h(
      "button",
      { type: "button", className: "tool close", "aria-label": "Close", onclick: () => this.model.setFocus(NO_ROW) },
      icon("drop"),
    );
    return h("div", { className: "row" }, ...buttons, close);
  }

  private neighbours(row: number, near: HTMLElement, turn: number): void {
    if (this.space === "features") return;
    this.fillNeighbours(near, this.model.nearest(row, NEIGHBOURS), turn);
  }

  private fillNeighbours(near: HTMLElement, rows: number[], turn: number): void {
    if (turn !== this.shown) return;
    const title = h("span", { className: "caption" }, "Nearest ");
    if (this.large && this.model.info.features) {
      const choice = h(
        "select",
        { "aria-label": "Where neighbours are looked for" },
        h("option", { value: "map", selected: this.space === "map" }, "on the map"),
        h("option", { value: "features", selected: this.space === "features" }, "by features"),
      );
      choice.addEventListener("change", () => {
        this.space = choice.value as "map" | "features";
        this.show(this.row);
      });
      title.append(choice);
    } else title.append("on the map");
    const pictures = rows.map((other) => {
      const canvas = this.thumbs.canvas(other);
      const cell = h(
        "button",
        {
          type: "button",
          className: this.model.kept(other) ? "neighbour" : "neighbour dropped",
          title: this.model.describe(other),
          "aria-label": this.model.describe(other),
          tabindex: this.large ? "0" : "-1",
          onclick: () => this.model.setFocus(other),
        },
        canvas,
      );
      cell.style.setProperty("--class", classColour(this.model.label[other] ?? 0, this.model.info.classes.length));
      return cell;
    });
    near.replaceChildren(title, h("div", { className: "strip" }, ...pictures));
    this.near = rows;
    this.states = this.statesNow();
    this.onNeighbours(rows);
  }

  private async detail(row: number, why: HTMLElement, near: HTMLElement, turn: number): Promise<void> {
    try {
      const wanted = this.space === "features" ? NEIGHBOURS : 0;
      const found = await this.model.source.sample(this.model.id(row), wanted);
      if (turn !== this.shown) return;
      if (found.override !== null) {
        const when = new Date(found.override.time * 1000).toLocaleString();
        why.textContent = found.override.reason ? `“${found.override.reason}”, ${when}` : when;
      }
      if (found.neighbours !== undefined) {
        this.fillNeighbours(near, found.neighbours.map((one) => one.row), turn);
      }
    } catch {
      // The card still shows what the page knows by itself.
    }
  }
}
