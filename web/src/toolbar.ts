/** What stands over the map: colours, filter, pan or lasso, and the legend. */

import type { ColourBy, Encoding } from "./colours";
import { scale } from "./colours";
import { count, h, icon, swatch } from "./dom";
import { MANY, type Mode } from "./map/map";
import type { DroppedStyle, Model, Show } from "./model";

export class Toolbar {
  readonly element: HTMLElement;
  readonly legend = h("div", { className: "legend", role: "group", "aria-label": "Legend" });
  onMode: (mode: Mode) => void = () => undefined;
  onFit: () => void = () => undefined;
  onDense: (dense: boolean) => void = () => undefined;
  private mode: Mode = "pan";
  private readonly colour = h("select", { id: "colour", "aria-label": "Colour by" });
  private readonly dropped = h("select", { id: "dropped-style", "aria-label": "Draw dropped samples" });
  private shown = "";
  private readonly tools: Record<Mode, HTMLButtonElement>;

  constructor(private readonly model: Model) {
    this.colour.addEventListener("change", () => model.setColour(this.colour.value as ColourBy));
    this.dropped.addEventListener("change", () => model.setDroppedStyle(this.dropped.value as DroppedStyle));
    const show = h(
      "select",
      { id: "show", "aria-label": "Show" },
      ...(
        [
          ["all", "all"],
          ["kept", "kept"],
          ["dropped", "dropped"],
          ["overruled", "by hand"],
        ] as const
      ).map(([value, text]) => h("option", { value }, text)),
    );
    show.addEventListener("change", () => model.setShow(show.value as Show));
    this.tools = {
      pan: this.tool("pan", "pan", "Move and zoom"),
      lasso: this.tool("lasso", "lasso", "Lasso (l, or hold shift)"),
    };
    const fit = h(
      "button",
      { type: "button", className: "tool", id: "fit", "aria-label": "Fit the map (f)", title: "Fit the map (f)", onclick: () => this.onFit() },
      icon("fit"),
    );
    const dense = h(
      "button",
      { type: "button", className: "tool", id: "density", "aria-pressed": "false", "aria-label": "Density", title: "Density: how many points overlap" },
      icon("density"),
    );
    dense.addEventListener("click", () => {
      const on = dense.getAttribute("aria-pressed") !== "true";
      dense.setAttribute("aria-pressed", String(on));
      this.onDense(on);
    });
    this.element = h(
      "div",
      { className: "toolbar", role: "toolbar", "aria-label": "Map", hidden: model.n === 0 },
      h("label", {}, "Colour", this.colour),
      h("label", {}, "Show", show),
      h("label", {}, "Dropped", this.dropped),
      h("span", { className: "tools" }, this.tools.pan, this.tools.lasso, dense, fit),
    );
    model.on(["comparison", "colour"], () => this.options());
    this.options();
    this.setMode("pan");
  }

  setMode(mode: Mode): void {
    this.mode = mode;
    for (const [name, tool] of Object.entries(this.tools)) tool.setAttribute("aria-pressed", String(name === mode));
    this.onMode(mode);
  }

  toggleLasso(): void {
    this.setMode(this.mode === "lasso" ? "pan" : "lasso");
  }

  show(encoding: Encoding): void {
    // While a slider moves, only the numbers change.
    const key = JSON.stringify([encoding.ends, encoding.legend.map(({ count: _, ...rest }) => rest)]);
    if (key === this.shown) {
      const numbers = this.legend.querySelectorAll("b");
      encoding.legend.forEach((item, n) => {
        const number = numbers[n];
        if (number !== undefined) number.textContent = count(item.count);
      });
      return;
    }
    this.shown = key;
    const parts: (Node | string)[] = encoding.legend.map((item) => {
      const mark = swatch(item.colour);
      mark.classList.toggle("hollow", item.hollow === true);
      return h("span", { className: "item" }, mark, item.text, h("b", {}, count(item.count)));
    });
    if (encoding.ends !== undefined) {
      const ramp = h("span", { className: "ramp" });
      ramp.style.backgroundImage = `linear-gradient(to right, ${scale().join(", ")})`;
      parts.unshift(encoding.ends[0], ramp, encoding.ends[1], h("span", { className: "note" }, "by rank"));
    }
    this.legend.replaceChildren(...parts);
    this.legend.hidden = this.model.n === 0 || parts.length === 0;
  }

  private tool(sign: "pan" | "lasso", mode: Mode, text: string): HTMLButtonElement {
    return h(
      "button",
      { type: "button", className: "tool", id: sign, "aria-label": text, title: text, onclick: () => this.setMode(mode) },
      icon(sign),
    );
  }

  private options(): void {
    const { info, comparison, colourBy } = this.model;
    const choices: [ColourBy, string, boolean][] = [
      ["class", "class", true],
      ["decision", "decision", true],
      ["cluster", "cluster", info.clusters],
      ["place", "strangers", info.layout === "map"],
      ["score", "score", info.scores],
      ["votes", "vote share", info.votes],
      ["comparison", "comparison", comparison !== null],
    ];
    this.colour.replaceChildren(
      ...choices
        .filter(([, , there]) => there)
        .map(([value, text]) => h("option", { value, selected: value === colourBy }, text)),
    );
    const styles: [DroppedStyle, string][] = [
      ["grey", "grey"],
      ["ring", "outlined"],
      ["plain", "as the rest"],
    ];
    this.dropped.replaceChildren(
      ...styles
        // A ring around a point of a pixel or two is not seen.
        .filter(([value]) => value !== "ring" || this.model.n <= MANY)
        .map(([value, text]) => h("option", { value, selected: value === this.model.droppedStyle }, text)),
    );
  }
}
