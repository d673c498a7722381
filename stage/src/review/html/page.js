"use strict";
// Everything works without this but the filter, the keys, the themes and the view side by side; contents that wait in
// a <template> until somebody opens them need it too. Nothing is ever parsed from text.
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const root = document.documentElement;
  const files = $$(".file");
  const links = new Map($$(".tree a").map((link) => [link.hash.slice(1), link]));
  const wide = matchMedia("(min-width: 75em)");
  const narrow = matchMedia("(max-width: 56em)");

  const remembered = (key, value) => {
    try {
      if (value !== undefined) localStorage.setItem("pvisor-review-" + key, value);
      return localStorage.getItem("pvisor-review-" + key);
    } catch {
      return null; // A page from a file may have no storage.
    }
  };

  // Themes.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const nameTheme = () => { $("#theme").textContent = isDark() ? "Light" : "Dark"; };
  const toggleTheme = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered("theme", root.dataset.theme);
    nameTheme();
  };
  if (["light", "dark"].includes(remembered("theme"))) root.dataset.theme = remembered("theme");
  dark.addEventListener("change", nameTheme);
  nameTheme();

  // Contents that were too long to be laid out at once.
  const load = (file) => {
    const template = $("template", file);
    if (!template) return;
    template.replaceWith(template.content);
    observe(file);
  };

  // Side by side: made from the rows of the plain table when it comes near.
  let split = remembered("layout") ? remembered("layout") === "split" : wide.matches;
  const cell = (className, text) => {
    const td = document.createElement("td");
    td.className = className;
    if (text !== undefined) td.textContent = text;
    return td;
  };
  const half = (row, old) => {
    if (!row) return [cell("n void"), cell("s void"), cell("c void")];
    const [before, after, sign, content] = row.cells;
    const kind = row.className ? " " + row.classList[0] : "";
    const copy = content.cloneNode(true);
    copy.className += kind;
    return [cell("n" + kind, (old ? before : after).textContent), cell("s" + kind, sign.textContent), copy];
  };
  const sideBySide = (table) => {
    const two = document.createElement("table");
    two.className = "two";
    two.append($("caption", table).cloneNode(true));
    const columns = document.createElement("colgroup");
    for (const name of ["n", "s", "c", "n", "s", "c"]) {
      const column = document.createElement("col");
      column.className = "col-" + name;
      columns.append(column);
    }
    const body = document.createElement("tbody");
    let gone = [], come = [];
    const flush = () => {
      for (let at = 0; at < Math.max(gone.length, come.length); at++) {
        const row = body.insertRow();
        if (at === 0) row.dataset.b = "";
        row.append(...half(gone[at], true), ...half(come[at], false));
      }
      [gone, come] = [[], []];
    };
    for (const row of table.rows) {
      if (row.classList.contains("d")) {
        if (come.length) flush();
        gone.push(row);
      } else if (row.classList.contains("a")) come.push(row);
      else {
        flush();
        if (row.classList.contains("h")) {
          const head = row.cloneNode(true);
          head.cells[0].colSpan = 6;
          body.append(head);
        } else body.insertRow().append(...half(row, true), ...half(row, false));
      }
    }
    flush();
    two.append(columns, body);
    return two;
  };
  const lay = (diff) => {
    const plain = $("table.u", diff);
    const both = split && !narrow.matches && $$("tr.d", plain).length > 0;
    if (both && !$("table.two", diff)) diff.append(sideBySide(plain));
    plain.hidden = both;
    for (const row of $$("tr.h", plain)) row.cells[0].colSpan = narrow.matches ? 3 : 4; // One number is hidden then.
    const two = $("table.two", diff);
    if (two) two.hidden = !both;
  };
  const near = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) if (isIntersecting) lay(target);
  }, { rootMargin: "800px" });
  const observe = (scope) => $$(".diff", scope).forEach((diff) => { near.unobserve(diff); near.observe(diff); });
  const setLayout = (value) => {
    split = value;
    $("#layout").setAttribute("aria-pressed", String(split));
    observe(document);
  };
  const toggleLayout = () => {
    setLayout(!split);
    remembered("layout", split ? "split" : "plain");
  };
  narrow.addEventListener("change", () => observe(document));
  setLayout(split);
  for (const file of files) $("details", file).addEventListener("toggle", (e) => { if (e.target.open) load(file); });

  // The filter, by path and by text.
  const texts = new Map();
  const textOf = (file) => {
    if (!texts.has(file)) {
      const template = $("template", file);
      const rows = $$(".u .c", template ? template.content : file).map((c) => c.textContent).join("\n");
      texts.set(file, ($("h2", file).textContent + "\n" + rows).toLowerCase());
    }
    return texts.get(file);
  };
  const filter = () => {
    const wanted = $("#q").value.trim().toLowerCase();
    const flagged = $("#flagged")?.checked;
    let shown = 0;
    for (const file of files) {
      const hit = (!flagged || file.dataset.flag) && (!wanted || textOf(file).includes(wanted));
      file.hidden = !hit;
      shown += hit ? 1 : 0;
      const link = links.get(file.id);
      if (link) link.parentElement.hidden = !hit;
    }
    for (const dir of $$(".tree .dir").reverse()) dir.hidden = !$("li:not(.dir):not([hidden])", dir);
    $("#nothing").hidden = shown > 0 || files.length === 0;
    $("#count").textContent = wanted || flagged ? `${shown} of ${files.length} changes shown` : "";
  };
  let pending;
  $("#q").addEventListener("input", () => { clearTimeout(pending); pending = setTimeout(filter, 120); });
  $("#flagged")?.addEventListener("change", filter);

  // Going from file to file and from change to change.
  const top = () => (narrow.matches ? 0 : $("header").offsetHeight);
  const resize = () => root.style.setProperty("--head", narrow.matches ? "0px" : $("header").offsetHeight + "px");
  new ResizeObserver(resize).observe($("header"));
  const visibleFiles = () => files.filter((file) => !file.hidden);
  let here = null;
  const mark = (file) => {
    if (here === file) return;
    here?.classList.remove("here");
    if (here) links.get(here.id)?.removeAttribute("aria-current");
    here = file;
    if (!file) return;
    file.classList.add("here");
    const link = links.get(file.id);
    link?.setAttribute("aria-current", "true");
    if (!narrow.matches) link?.scrollIntoView({ block: "nearest" });
  };
  const current = () => visibleFiles().findLast((file) => file.getBoundingClientRect().top <= top() + 24) ?? null;
  const goto = (file) => {
    if (!file) return;
    $("details", file).open = true;
    load(file);
    file.scrollIntoView({ block: "start" });
    $("summary", file).focus({ preventScroll: true });
    mark(file);
  };
  const step = (by) => {
    const all = visibleFiles();
    const at = all.indexOf(here && !here.hidden ? here : current());
    goto(all[Math.min(Math.max(at + by, 0), all.length - 1)]);
  };
  const change = (by) => {
    const file = here && !here.hidden ? here : current() ?? visibleFiles()[0];
    if (file && !$("details", file).open) return goto(file);
    const rows = $$("[data-b]").filter((row) => row.offsetParent);
    const at = rows.findIndex((row) => row.classList.contains("at"));
    const edge = top() + 60;
    const from = at >= 0 ? at + by
      : by > 0 ? rows.findIndex((row) => row.getBoundingClientRect().top > edge)
      : rows.findLastIndex((row) => row.getBoundingClientRect().top < edge);
    const next = rows[from];
    if (!next) return by > 0 ? step(1) : undefined;
    $$(".at").forEach((row) => row.classList.remove("at"));
    next.classList.add("at");
    next.scrollIntoView({ block: "center" });
    mark(next.closest(".file"));
  };
  let waiting = false;
  addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; if (!$(".at")) mark(current()); });
  }, { passive: true });
  addEventListener("wheel", () => $$(".at").forEach((row) => row.classList.remove("at")), { passive: true });
  const follow = () => { if (location.hash.startsWith("#f")) goto(document.getElementById(location.hash.slice(1))?.closest(".file")); };
  addEventListener("hashchange", follow);
  $(".tree").addEventListener("click", (e) => {
    const link = e.target.closest("a");
    if (!link) return;
    if (narrow.matches) $("#navbox").open = false;
    if (link.hash === location.hash) { e.preventDefault(); follow(); }
  });

  // Keys and buttons.
  const toggleFile = () => {
    const details = $("details", here ?? current() ?? files[0] ?? document);
    if (details) details.open = !details.open;
  };
  const help = () => $("#help").showModal();
  $("#theme").addEventListener("click", toggleTheme);
  $("#layout").addEventListener("click", toggleLayout);
  $("#keys").addEventListener("click", help);
  const keys = {
    j: () => step(1), k: () => step(-1), n: () => change(1), p: () => change(-1), x: toggleFile, s: toggleLayout,
    t: toggleTheme, "?": help, "/": () => { $("#q").focus(); $("#q").select(); },
  };
  addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || $("#help").open) return;
    if (e.target === $("#q")) {
      if (e.key === "Escape") { $("#q").value = ""; filter(); $("#q").blur(); }
      return;
    }
    if (!Object.hasOwn(keys, e.key)) return;
    e.preventDefault();
    keys[e.key]();
  });

  const narrowed = () => { $("#navbox").open = !narrow.matches; };
  narrow.addEventListener("change", narrowed);
  narrowed();
  resize();
  follow();
})();
