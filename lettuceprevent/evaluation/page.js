"use strict";
(() => {
  const tip = document.getElementById("tip");
  const say = document.getElementById("say");
  const cell = (row, text, kind = "td") => {
    const made = document.createElement(kind);
    made.textContent = text;
    row.append(made);
  };
  const shown = (text) => (text === "" ? "∎" : text.replace(/\n/g, "↵").replace(/ /g, "␣"));
  const percent = (p) => (p === null ? "" : p >= 0.001 ? (100 * p).toFixed(1) + " %" : "< 0.1 %");
  const number = (x) => (x === null ? "" : x.toFixed(2));
  const micro = (us) => (us >= 1000 ? (us / 1000).toFixed(2) + " ms" : us.toFixed(0) + " µs");

  let from = null; // the token whose candidates are shown
  function hide() {
    tip.hidden = true;
    if (from) from.removeAttribute("aria-describedby");
    document.querySelectorAll(".here").forEach((old) => old.classList.remove("here"));
    from = null;
  }

  function show(token, step) {
    hide();
    from = token;
    token.classList.add("here");
    token.setAttribute("aria-describedby", "tip");
    const bar = token.closest("section").querySelector(`rect[data-i="${token.dataset.i}"]`);
    if (bar) bar.classList.add("here");
    tip.replaceChildren();
    const head = document.createElement("p");
    head.textContent = `token ${token.dataset.i}: ${step.say}` + (step.us === null ? "" : `, ${micro(step.us)}`);
    tip.append(head);
    if (step.c.length) {
      const after = step.c.some((c) => c[2] !== null);
      const scored = step.c.some((c) => c[3] !== null);
      const table = document.createElement("table");
      const top = table.createTHead().insertRow();
      const names = ["candidate", "host", ...(after ? ["score"] : []), ...(scored ? ["unsupported"] : []), ""];
      names.forEach((name) => cell(top, name, "th"));
      const body = table.createTBody();
      for (const [text, p, score, bad, verdict] of step.c) {
        const row = body.insertRow();
        row.className = { chosen: "chosen", blocked: "no", unsupported: "no" }[verdict] || (verdict ? "out" : "");
        cell(row, shown(text));
        cell(row, percent(p));
        if (after) cell(row, number(score));
        if (scored) cell(row, percent(bad));
        cell(row, verdict);
      }
      tip.append(table);
    }
    tip.hidden = false;
    const box = token.getClientRects()[0] || token.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8));
    const below = box.bottom + 6 + tip.offsetHeight < window.innerHeight || box.top < tip.offsetHeight + 6;
    tip.style.left = left + window.scrollX + "px";
    tip.style.top = (below ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + window.scrollY + "px";
  }

  function select(item, answer, n) {
    const button = answer.querySelector(`button[data-n="${n}"]`);
    const again = button.getAttribute("aria-pressed") === "true";
    item.querySelectorAll('[aria-pressed="true"]').forEach((old) => old.setAttribute("aria-pressed", "false"));
    item.querySelectorAll(".on").forEach((old) => old.classList.remove("on"));
    if (again) return void (say.textContent = "nothing selected");
    button.setAttribute("aria-pressed", "true");
    answer.querySelectorAll(`.iv[data-n~="${n}"]`).forEach((mark) => mark.classList.add("on"));
    const parts = item.querySelectorAll(`.e[data-e~="${button.dataset.e}"]`);
    parts.forEach((part) => part.classList.add("on"));
    const context = item.querySelector(".context");
    if (parts.length && context.scrollHeight > context.clientHeight) {
      const gap = parts[0].getBoundingClientRect().top - context.getBoundingClientRect().top;
      context.scrollTop += gap - context.clientHeight / 3;
    }
    const text = [...parts].map((part) => part.textContent).join("");
    say.textContent = parts.length ? `highlighted in the context: ${text}` : "no evidence in the context";
  }

  for (const item of document.querySelectorAll(".item")) {
    for (const answer of item.querySelectorAll(".answers > section")) {
      const data = answer.querySelector('script[type="application/json"]');
      const steps = data ? JSON.parse(data.textContent) : [];
      const tokens = [...answer.querySelectorAll(".t")];
      let at = 0;
      const move = (to) => {
        if (!tokens[to]) return;
        tokens[at].tabIndex = -1;
        at = to;
        tokens[at].tabIndex = 0;
        tokens[at].focus();
      };
      const next = (way) => {
        for (let to = at + way; tokens[to]; to += way) if (tokens[to].classList.contains("iv")) return move(to);
      };
      tokens.forEach((token, index) => {
        const step = steps[index];
        const open = () => step && show(token, step);
        token.addEventListener("mouseenter", open);
        token.addEventListener("focus", open);
        token.addEventListener("click", () => {
          move(index);
          if (token.dataset.n) select(item, answer, token.dataset.n.split(" ")[0]);
        });
        token.addEventListener("keydown", (event) => {
          const keys = {
            ArrowRight: () => move(at + 1), ArrowLeft: () => move(at - 1),
            ArrowDown: () => next(1), ArrowUp: () => next(-1),
            Home: () => move(0), End: () => move(tokens.length - 1),
            Enter: () => token.dataset.n && select(item, answer, token.dataset.n.split(" ")[0]),
          };
          if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
          event.preventDefault();
          keys[event.key]();
        });
        token.addEventListener("blur", hide);
        token.addEventListener("mouseleave", (event) => {
          if (document.activeElement !== token && !tip.contains(event.relatedTarget)) hide();
        });
      });
      answer.querySelectorAll("button[data-n]").forEach((button) => {
        button.addEventListener("click", () => select(item, answer, button.dataset.n));
      });
      answer.querySelectorAll("rect[data-i]").forEach((bar) => {
        bar.addEventListener("click", () => move(Number(bar.dataset.i)));
      });
    }
  }
  tip.addEventListener("mouseleave", hide);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
})();
