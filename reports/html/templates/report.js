"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const say = (words) => { byId("announce").textContent = words; };

  // -- copying ---------------------------------------------------------------------------------
  async function copied(element) {
    try {
      await navigator.clipboard.writeText(element.textContent);
      return true;
    } catch {
      // A page opened from a file may be refused the clipboard: select the text and copy it.
      const range = document.createRange();
      range.selectNodeContents(element);
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      return document.execCommand("copy");
    }
  }
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const done = await copied(byId(button.dataset.copy));
      button.textContent = done ? "Copied" : "Selected";
      say(done ? "Copied" : "Selected: copy it with the keyboard");
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  // -- the table of trials: a tbody a trial ------------------------------------------------------
  const table = byId("trials-table");
  if (table) {
    const bodies = [...table.tBodies];
    const headings = [...table.tHead.rows[0].cells];

    const keyOf = (body, column, numeric) => {
      const cell = body.rows[0].cells[column];
      if (!numeric) return cell.textContent.trim().toLowerCase();
      return cell.dataset.value === "" ? null : Number(cell.dataset.value);
    };
    const compared = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);

    function sort(heading) {
      const column = headings.indexOf(heading);
      const numeric = heading.dataset.numeric === "1";
      const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of headings) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", direction);
      const sign = direction === "ascending" ? 1 : -1;
      const keyed = bodies.map((body) => [keyOf(body, column, numeric), body]);
      // What has no number stays last, whichever way the others are sorted.
      const missing = (key) => key === null || key === "";
      keyed.sort(([a], [b]) => (missing(a) || missing(b) ? missing(a) - missing(b) : sign * compared(a, b)));
      table.append(...keyed.map(([, body]) => body));
      say(`Sorted by ${heading.textContent.trim()}, ${direction}`);
    }
    for (const heading of headings) {
      heading.querySelector("button")?.addEventListener("click", () => sort(heading));
    }

    const [text, backend, kind] = ["filter-text", "filter-backend", "filter-kind"].map(byId);
    const haystacks = new Map(bodies.map((body) => [body, null]));
    function filter() {
      const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const body of bodies) {
        let fits = (!backend.value || body.dataset.backend === backend.value)
          && (!kind.value || body.dataset.kind === kind.value);
        if (fits && words.length) {
          if (haystacks.get(body) === null) haystacks.set(body, body.textContent.toLowerCase());
          fits = words.every((word) => haystacks.get(body).includes(word));
        }
        body.hidden = !fits;
        shown += fits ? 1 : 0;
      }
      byId("filter-count").textContent = `${shown} of ${bodies.length} shown`;
    }
    for (const input of [text, backend, kind]) input.addEventListener("input", filter);
    text.form.addEventListener("submit", (event) => event.preventDefault());
    filter();

    table.addEventListener("click", (event) => {
      const button = event.target.closest("button.more");
      if (!button) return;
      const detail = byId(button.getAttribute("aria-controls"));
      detail.hidden = !detail.hidden;
      detail.classList.toggle("open", !detail.hidden);
      button.setAttribute("aria-expanded", String(!detail.hidden));
    });
  }

  // -- charts ------------------------------------------------------------------------------------
  const source = byId("figures");
  if (!source || typeof Plotly === "undefined") return;
  const figures = Object.entries(JSON.parse(source.textContent)).filter(([id]) => byId(id));
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const colours = (isDark) => isDark
    ? { text: "#e6e9ed", grid: "#2a323b", line: "#7d8894", panel: "#191f26" }
    : { text: "#1b1f24", grid: "#e7eaee", line: "#7d8894", panel: "#ffffff" };
  function themed(layout, isDark) {
    const { text, grid, line, panel } = colours(isDark);
    const update = { "font.color": text, "hoverlabel.bgcolor": panel, "hoverlabel.font.color": text };
    for (const axis of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
      update[`${axis}.gridcolor`] = grid;
      update[`${axis}.linecolor`] = line;
      update[`${axis}.tickcolor`] = line;
    }
    return update;
  }
  const widthOf = (id) => byId(id).clientWidth;
  const drawn = new Set();
  function draw(id, figure) {
    if (drawn.has(id)) return;
    drawn.add(id);
    const layout = structuredClone(figure.layout);
    for (const [path, value] of Object.entries(themed(layout, dark.matches))) {
      const [owner, key] = [path.split(".").slice(0, -1), path.split(".").at(-1)];
      owner.reduce((at, name) => (at[name] ??= {}), layout)[key] = value;
    }
    Plotly.newPlot(id, figure.data, layout, {
      displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false,
    });
    byId(id).dataset.drawn = "1";
  }
  const drawAll = () => { for (const [id, figure] of figures) draw(id, figure); };
  // A thousand trials make many marks: a chart is drawn when the reader comes near it.
  if ("IntersectionObserver" in window) {
    const near = new IntersectionObserver((entries) => {
      for (const entry of entries.filter((e) => e.isIntersecting)) {
        near.unobserve(entry.target);
        draw(entry.target.id, figures.find(([id]) => id === entry.target.id)[1]);
      }
    }, { rootMargin: "300px" });
    for (const [id] of figures) near.observe(byId(id));
  }
  // The others follow one by one when the page has nothing else to do.
  const idle = window.requestIdleCallback ?? ((then) => setTimeout(then, 50));
  const drawNext = () => {
    const next = figures.find(([id]) => !drawn.has(id));
    if (!next) return;
    draw(...next);
    idle(drawNext);
  };
  if (document.readyState === "complete") idle(drawNext);
  else window.addEventListener("load", () => idle(drawNext));
  const relayoutDrawn = (update) => {
    for (const [id, figure] of figures) if (drawn.has(id)) Plotly.relayout(id, update(id, figure));
  };
  dark.addEventListener("change", () => relayoutDrawn((id, figure) => themed(figure.layout, dark.matches)));
  // Paper is light, and narrower than most screens.
  window.addEventListener("beforeprint", () => {
    drawAll();
    relayoutDrawn((id, figure) => ({ ...themed(figure.layout, false), width: Math.min(680, widthOf(id)) }));
  });
  window.addEventListener("afterprint", () => {
    relayoutDrawn((id, figure) => ({ ...themed(figure.layout, dark.matches), width: widthOf(id) }));
    relayoutDrawn(() => ({ width: null, autosize: true }));
  });
})();
