"""Run the command line: `python -m fanout` is `fanout` where no script is on the path."""

from fanout.cli import main

if __name__ == "__main__":
    main()
