/** The bar on top: what is looked at, how much is kept, undo and redo. */

import { count, h, icon, percent } from "./dom";
import { KEYS } from "./keys";
import type { Model } from "./model";
import { toggleTheme } from "./theme";

export class Header {
  readonly element: HTMLElement;
  onUndo: () => void = () => undefined;
  onRedo: () => void = () => undefined;
  private readonly numbers = h("p", { className: "numbers", id: "numbers" });
  private readonly undo = button("undo", "Undo (u)", () => this.onUndo());
  private readonly redo = button("redo", "Redo (r)", () => this.onRedo());
  private readonly theme = h("button", { type: "button", className: "tool", id: "theme", "aria-label": "Light or dark" });
  private readonly connection = h("span", { className: "connection", hidden: true, role: "status" }, "server stopped");
  private readonly choice = h("select", { id: "selection", "aria-label": "Selection" });
  private readonly help: HTMLDialogElement;

  constructor(
    private readonly model: Model,
    search: HTMLElement,
  ) {
    const { source } = model;
    this.theme.addEventListener("click", () => {
      toggleTheme();
      model.tell("theme");
    });
    this.choice.addEventListener("change", () => location.assign(source.pageFor(this.choice.value)));
    this.help = h(
      "dialog",
      { className: "help", "aria-label": "Keyboard" },
      h("h2", {}, "Keyboard"),
      h("dl", {}, ...KEYS.flatMap(([keys, text]) => [h("dt", {}, keys), h("dd", {}, text)])),
      h("form", { method: "dialog" }, h("button", { className: "act" }, "Close")),
    );
    this.element = h(
      "header",
      {},
      h("img", { className: "logo", src: "./assets/favicon.svg", alt: "", width: 26, height: 26 }),
      h("h1", {}, "Thresher"),
      h("span", { className: "of" }, this.choice, h("span", { className: "data" }, model.info.data)),
      this.numbers,
      h("span", { className: "gap" }),
      source.live ? this.connection : h("span", { className: "badge" }, "read-only export"),
      search,
      ...(source.live ? [this.undo, this.redo] : []),
      this.theme,
      button("help", "Keyboard (?)", () => this.showHelp()),
      this.help,
    );
    model.on(["decisions", "preview"], () => this.refresh());
    model.on(["selections"], () => this.options());
    model.on(["theme"], () => this.sign());
    this.options();
    this.refresh();
    this.sign();
  }

  showHelp(): void {
    if (!this.help.open) this.help.showModal();
  }

  connected(yes: boolean): void {
    this.connection.hidden = yes;
  }

  private options(): void {
    const { name, selections } = this.model.info;
    const names = this.model.source.live ? selections : [name];
    this.choice.replaceChildren(...names.map((one) => h("option", { value: one, selected: one === name }, one)));
    this.choice.disabled = names.length < 2;
  }

  private refresh(): void {
    const { model } = this;
    const { dropped, overruled } = model.counts;
    const kept = model.n - dropped;
    this.numbers.replaceChildren(
      part("kept", kept, "kept"),
      part("dropped", dropped, "dropped", model.n ? percent(dropped / model.n) : ""),
      ...(overruled ? [part("hand", overruled, "by hand")] : []),
      ...(model.preview === null ? [] : [h("span", { className: "badge" }, "preview")]),
    );
    this.undo.disabled = model.undoable === 0;
    this.redo.disabled = model.redoable === 0;
  }

  private sign(): void {
    this.theme.replaceChildren(icon(document.documentElement.dataset["theme"] === "dark" ? "sun" : "moon"));
  }
}

function part(kind: string, n: number, text: string, more = ""): HTMLElement {
  return h("span", { className: `part ${kind}`, "data-count": n }, h("b", {}, count(n)), ` ${text}`, more ? h("i", {}, ` ${more}`) : null);
}

function button(sign: "undo" | "redo" | "help", text: string, action: () => void): HTMLButtonElement {
  return h("button", { type: "button", className: "tool", id: sign, "aria-label": text, title: text, onclick: action }, icon(sign));
}
