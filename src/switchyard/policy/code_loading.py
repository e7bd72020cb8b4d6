"""Variables of the environment that make programs load or run other code: rules of a project may not set them. Pure."""

from __future__ import annotations


def is_code_loading(name: str) -> bool:
    """Whether a program that sees this variable may load or run other code."""
    return name in NAMES or (name.startswith(PREFIXES) and name not in HARMLESS)


# Variables of the environment that make a program load or run other code. Rules of a project may not set them.
#
# A job runs under its submitter's account, and a rule of a project reaches the jobs of all its users. With one of these
# variables the administrator of a project would run code as each of them, and as root where an agent is root. Only a
# platform administrator may set them, by a rule of a domain or in the server's config file.
#
# No list can be complete: a program may read code from any variable of its own. The list has what the dynamic linker,
# shells, interpreters, common tools and batch systems obey, so that a command that knows nothing of the rule is safe.

# The dynamic linker; exported functions of bash; interpreters; programs and hooks that git runs.
PREFIXES = ("LD_", "DYLD_", "BASH_FUNC_", "PYTHON", "PERL", "RUBY", "GIT_", "LUA_", "R_PROFILE", "R_ENVIRON", "R_LIBS")
NAMES = frozenset(
    {
        # Where programs, libraries, plugins and start-up files are looked for.
        *("PATH", "HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_DIRS", "ZDOTDIR", "CDPATH"),
        *("GCONV_PATH", "LOCPATH", "NLSPATH", "GLIBC_TUNABLES", "MODULEPATH"),
        *("GTK_MODULES", "GTK_PATH", "GIO_EXTRA_MODULES", "QT_PLUGIN_PATH", "VK_ICD_FILENAMES", "OCL_ICD_VENDORS"),
        *("OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "KRB5_CONFIG", "CUDA_INJECTION64_PATH"),
        # What a shell reads or runs by itself.
        *("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "IFS", "PS4", "PROMPT_COMMAND", "SHELL"),
        # Options and paths of interpreters and virtual machines.
        *(
            "NODE_OPTIONS",
            "NODE_PATH",
            "CLASSPATH",
            "JAVA_TOOL_OPTIONS",
            "_JAVA_OPTIONS",
            "JDK_JAVA_OPTIONS",
            "JAVA_HOME",
        ),
        *(
            "R_HOME",
            "JULIA_LOAD_PATH",
            "JULIA_DEPOT_PATH",
            "TCLLIBPATH",
            "PHPRC",
            "PHP_INI_SCAN_DIR",
            "GUILE_LOAD_PATH",
        ),
        *("DOTNET_STARTUP_HOOKS", "CORECLR_PROFILER_PATH", "MAKEFLAGS", "MAKEFILES", "CC", "CXX", "RUSTC_WRAPPER"),
        # Programs that other programs start.
        *("EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "LESSOPEN", "LESSCLOSE", "SSH_ASKPASS", "SUDO_ASKPASS"),
        *("RSYNC_RSH", "CVS_RSH", "TAR_OPTIONS"),
        # Batch systems and MPI.
        *("SLURM_CONF", "SLURM_PROLOG", "SLURM_EPILOG", "SLURM_TASK_PROLOG", "SLURM_TASK_EPILOG", "FLUX_EXEC_PATH"),
        *("FLUX_MODULE_PATH", "FLUX_CONNECTOR_PATH", "FLUX_SHELL_RC_PATH", "OMPI_MCA_plm_rsh_agent"),
        *("OMPI_MCA_mca_base_component_path", "OPAL_PREFIX", "I_MPI_HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER_EXEC"),
    }
)
# These begin with one of the prefixes and load nothing.
HARMLESS = frozenset(
    {
        *("PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING", "PYTHONUTF8"),
        *("PYTHONFAULTHANDLER", "PYTHONOPTIMIZE", "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME"),
        *("GIT_COMMITTER_EMAIL", "GIT_TERMINAL_PROMPT", "GIT_COMMIT", "GIT_BRANCH"),
    }
)
