/** The top bar: selection, counts, search, undo and redo, theme and help. */

import { count, h, icon, iconButton, percent, select, setOptions } from "./dom";
import { SHORTCUTS } from "./keyboard";
import type { Model } from "./model";
import { isDark, toggleTheme } from "./theme";

export class Header {
  readonly element: HTMLElement;
  private readonly numbers = h("p", { className: "numbers", id: "numbers" });
  private readonly undo = iconButton("undo", "Undo (u)", () => this.model.undo());
  private readonly redo = iconButton("redo", "Redo (r)", () => this.model.redo());
  private readonly theme = iconButton("moon", "Light or dark theme", () => {
    toggleTheme();
    this.model.emit("theme");
  });
  private readonly connection = h("span", { className: "connection", hidden: true, role: "status" }, "server stopped");
  private readonly selection = select("selection", "Selection", (name) => this.model.source.open(name));
  private readonly help = h(
    "dialog",
    { className: "help", "aria-label": "Keyboard shortcuts" },
    h("h2", {}, "Keyboard shortcuts"),
    h("dl", {}, ...SHORTCUTS.flatMap(([keys, text]) => [h("dt", {}, keys), h("dd", {}, text)])),
    h("form", { method: "dialog" }, h("button", { className: "act" }, "Close")),
  );

  constructor(private readonly model: Model, search: HTMLElement) {
    const { live } = model.source;
    this.theme.id = "theme";
    this.element = h(
      "header",
      {},
      h("img", { className: "logo", src: "./assets/favicon.svg", alt: "", width: 26, height: 26 }),
      h("h1", {}, "Thresher"),
      h("span", { className: "of" }, this.selection, h("span", { className: "data" }, model.info.data)),
      this.numbers,
      h("span", { className: "gap" }),
      live ? this.connection : h("span", { className: "badge" }, "read-only export"),
      search,
      ...(live ? [this.undo, this.redo] : []),
      this.theme,
      iconButton("help", "Keyboard shortcuts (?)", () => this.showHelp()),
      this.help,
    );
    model.on(["decisions", "preview"], () => this.updateCounts());
    model.on(["selections"], () => this.updateOptions());
    model.on(["theme"], () => this.updateTheme());
    this.updateOptions();
    this.updateCounts();
    this.updateTheme();
  }

  showHelp(): void {
    if (!this.help.open) this.help.showModal();
  }

  setConnected(connected: boolean): void {
    this.connection.hidden = connected;
  }

  private updateOptions(): void {
    const { name, selections } = this.model.info;
    const names = this.model.source.live ? selections : [name];
    setOptions(this.selection, names.map((one) => [one, one] as const), name);
    this.selection.disabled = names.length < 2;
  }

  private updateCounts(): void {
    const { n, preview, undoable, redoable } = this.model;
    const { dropped, overridden } = this.model.counts;
    this.numbers.replaceChildren(
      part("kept", n - dropped, "kept"),
      part("dropped", dropped, "dropped", n ? percent(dropped / n) : ""),
      ...(overridden ? [part("hand", overridden, "by hand")] : []),
      ...(preview === null ? [] : [h("span", { className: "badge" }, "preview")]),
    );
    this.undo.disabled = undoable === 0;
    this.redo.disabled = redoable === 0;
  }

  private updateTheme(): void {
    this.theme.replaceChildren(icon(isDark() ? "sun" : "moon"));
  }
}

function part(kind: string, n: number, text: string, more = ""): HTMLElement {
  return h("span", { className: `part ${kind}`, "data-count": n }, h("b", {}, count(n)), ` ${text}`, more ? h("i", {}, ` ${more}`) : null);
}
