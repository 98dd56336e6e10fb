/** Finding samples by id. */

import { count, h, icon } from "./dom";
import type { Model } from "./model";

const LISTED = 8;
const FOUND_LIMIT = 5000;

export class Search {
  readonly element: HTMLElement;
  readonly input: HTMLInputElement;
  private readonly list = h("ul", { className: "found", id: "found", role: "listbox", hidden: true });
  private rows: number[] = [];

  constructor(private readonly model: Model) {
    this.input = h("input", {
      type: "search",
      id: "search",
      placeholder: "Find an id  ( / )",
      "aria-label": "Find samples by id",
      "aria-controls": "found",
      autocomplete: "off",
      spellcheck: "false",
    });
    this.input.addEventListener("input", () => this.look());
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.take();
      if (event.key === "Escape") this.close();
    });
    this.input.addEventListener("blur", () => window.setTimeout(() => (this.list.hidden = true), 150));
    this.element = h("div", { className: "search", role: "search" }, icon("search"), this.input, this.list);
  }

  private look(): void {
    const text = this.input.value.trim().toLowerCase();
    this.rows = text === "" ? [] : this.model.find(text, FOUND_LIMIT);
    const shown = this.rows.slice(0, LISTED).map((row) =>
      h(
        "li",
        { role: "option", onmousedown: () => this.model.setFocus(row) },
        h("span", { className: "id" }, this.model.id(row)),
        h("span", { className: "note" }, this.model.className(row)),
      ),
    );
    if (this.rows.length > LISTED) {
      shown.push(h("li", { className: "note" }, `${count(this.rows.length)} in all: Enter lists them`));
    }
    if (text !== "" && this.rows.length === 0) shown.push(h("li", { className: "note" }, "no such id"));
    this.list.replaceChildren(...shown);
    this.list.hidden = shown.length === 0;
  }

  private take(): void {
    const [first] = this.rows;
    if (first === undefined) return;
    if (this.rows.length > 1) this.model.pick(this.rows, `found for “${this.input.value.trim()}”`);
    this.model.setFocus(first);
    this.input.value = "";
    this.close();
  }

  private close(): void {
    this.list.hidden = true;
    this.input.blur();
  }
}
