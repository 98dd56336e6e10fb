/** The controls over the map, and its legend. */

import { scale, type Encoding } from "./colours";
import { count, h, iconButton, select, setOptions, swatch } from "./dom";
import type { Mode } from "./map/gestures";
import { MAX_RINGS, type MapView } from "./map/mapView";
import type { ColourBy, DroppedStyle, Model, Show } from "./model";

export class Toolbar {
  readonly element: HTMLElement;
  readonly legend = h("div", { className: "legend", role: "group", "aria-label": "Legend" });
  private readonly colour = select("colour", "Colour by", (value) => this.model.setColour(value as ColourBy));
  private readonly dropped = select("dropped-style", "Draw dropped samples", (value) => this.model.setDroppedStyle(value as DroppedStyle));
  private readonly modes = {
    pan: iconButton("pan", "Move and zoom", () => this.setMode("pan")),
    lasso: iconButton("lasso", "Lasso (l, or hold Shift)", () => this.setMode("lasso")),
  };
  private readonly density = iconButton("density", "Density: how many points overlap", () => {
    const on = this.density.getAttribute("aria-pressed") !== "true";
    this.density.setAttribute("aria-pressed", String(on));
    this.map.setDensity(on);
  });
  private mode: Mode = "pan";
  private legendKey = "";

  constructor(private readonly model: Model, private readonly map: MapView) {
    const show = select("show", "Show", (value) => model.setShow(value as Show));
    setOptions(show, [["all", "all"], ["kept", "kept"], ["dropped", "dropped"], ["overridden", "by hand"]], "all");
    this.density.setAttribute("aria-pressed", "false");
    this.element = h(
      "div",
      { className: "toolbar", role: "toolbar", "aria-label": "Map", hidden: model.n === 0 },
      h("label", {}, "Colour", this.colour),
      h("label", {}, "Show", show),
      h("label", {}, "Dropped", this.dropped),
      h("span", { className: "tools" }, this.modes.pan, this.modes.lasso, this.density, iconButton("fit", "Fit the map (f)", () => map.fit())),
    );
    map.onEncoded = (encoding) => this.updateLegend(encoding);
    model.on(["comparison", "colour"], () => this.updateOptions());
    this.updateOptions();
    this.setMode("pan");
  }

  toggleLasso(): void {
    this.setMode(this.mode === "lasso" ? "pan" : "lasso");
  }

  private setMode(mode: Mode): void {
    this.mode = mode;
    for (const [name, tool] of Object.entries(this.modes)) tool.setAttribute("aria-pressed", String(name === mode));
    this.map.setMode(mode);
  }

  private updateLegend({ legend, ends }: Encoding): void {
    // While a slider moves, only the counts change.
    const key = JSON.stringify([ends, legend.map(({ count: _, ...rest }) => rest)]);
    if (key === this.legendKey) {
      this.legend.querySelectorAll("b").forEach((number, n) => (number.textContent = count(legend[n]?.count ?? 0)));
      return;
    }
    this.legendKey = key;
    const parts: (Node | string)[] = legend.map((item) => {
      const mark = swatch(item.colour);
      mark.classList.toggle("hollow", item.hollow === true);
      return h("span", { className: "item" }, mark, item.text, h("b", {}, count(item.count)));
    });
    if (ends !== undefined) {
      const ramp = h("span", { className: "ramp" });
      ramp.style.backgroundImage = `linear-gradient(to right, ${scale().join(", ")})`;
      parts.unshift(ends[0], ramp, ends[1], h("span", { className: "note" }, "by rank"));
    }
    this.legend.replaceChildren(...parts);
    this.legend.hidden = this.model.n === 0 || parts.length === 0;
  }

  private updateOptions(): void {
    const { info, comparison, colourBy, n, droppedStyle } = this.model;
    const colours: [ColourBy, string, boolean][] = [
      ["class", "class", true],
      ["decision", "decision", true],
      ["cluster", "cluster", info.clusters],
      ["neighbourhood", "neighbourhood", info.layout === "map"],
      ["score", "score", info.scores],
      ["votes", "vote share", info.votes],
      ["comparison", "comparison", comparison !== null],
    ];
    setOptions(this.colour, colours.filter(([, , available]) => available).map(([value, text]) => [value, text] as const), colourBy);
    const styles: [DroppedStyle, string][] = [["grey", "grey"], ["ring", "outlined"], ["plain", "like kept"]];
    setOptions(this.dropped, styles.filter(([value]) => value !== "ring" || n <= MAX_RINGS), droppedStyle);
  }
}
